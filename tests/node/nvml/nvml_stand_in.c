/* A stand-in for libnvidia-ml.so.1: answers what the file named by NVML_STAND_IN says, read anew at each call.
 *
 * One fact a line, blanks between words:
 *   init CODE | crash | hang SECONDS | driver TEXT | layout small|large | list_sleep_us N | mean 0|1 | no_detail_list
 *   device INDEX UUID TOTAL USED          (TOTAL 0 with MEMCODE 0: unified memory that says so)
 *   memcode INDEX CODE | mig INDEX MODE | util INDEX PERCENT | utilcode INDEX CODE
 *   proc INDEX C|G|M PID BYTES            (BYTES -1: not available)
 *   sample INDEX PID STAMP_US SM ENC DEC
 *   follow INDEX PID                      (a device whose time is that process's CPU time, sampled each half second)
 *   devsample INDEX STAMP_US PERCENT
 * mean 1: one record a process, the mean of its samples after the stamp asked for (samples of 0 count into the mean).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LIBRARY_NOT_FOUND = 12, FUNCTION_NOT_FOUND = 13 };
enum { DEVICES = 8, MANY = 20000 };

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu, compute; } small_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu, compute; unsigned long long protected_memory; } large_t;
typedef struct { unsigned pid; unsigned long long stamp; unsigned sm, mem, enc, dec; } sample_t;
typedef struct { unsigned long long stamp; union { double d; unsigned u; unsigned long long ull; } value; } device_sample_t;

typedef struct {
  char uuid[96];
  unsigned long long total, used;
  int memcode, mig, util, utilcode;
} device_t;

typedef struct { int device; char kind; unsigned pid; unsigned long long memory; } proc_t;
typedef struct { int device; sample_t sample; } device_process_sample_t;
typedef struct { int device; unsigned long long stamp; unsigned pct; } busy_t;

static struct {
  int init, large, mean, no_detail_list, devices, procs, samples, busies;
  useconds_t list_sleep_us;
  char driver[80];
  device_t device[DEVICES];
  proc_t proc[MANY];
  device_process_sample_t sample[MANY];
  busy_t busy[MANY];
} now;

/* What ``follow`` has sampled so far; kept over changes of the file. */
typedef struct { int device; unsigned pid; unsigned long long stamp, ticks; } followed_t;
static followed_t followed[64];
static int follows;
static device_process_sample_t kept[MANY];
static int kepts;

/* Calls made, for tests to read. */
unsigned long stand_in_lists, stand_in_utils;

static unsigned long long cpu_ticks(unsigned pid) {
  char path[64], text[1024];
  unsigned long long user = 0, kernel = 0;
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = 0;
  char *rest = strrchr(text, ')');
  if (rest) sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &kernel);
  return user + kernel;
}

static void follow(int device, unsigned pid) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  unsigned long long stamp = at.tv_sec * 1000000ull + at.tv_nsec / 1000, ticks = cpu_ticks(pid);
  int i = 0;
  while (i < follows && (followed[i].device != device || followed[i].pid != pid)) i++;
  if (i == follows) {
    if (follows < 64) followed[follows++] = (followed_t){device, pid, stamp, ticks};
    return;
  }
  if (stamp - followed[i].stamp < 500000 || kepts == MANY) return;
  double busy_us = (double)(ticks - followed[i].ticks) * 1e6 / sysconf(_SC_CLK_TCK);
  unsigned pct = ticks < followed[i].ticks ? 0 : (unsigned)(100 * busy_us / (stamp - followed[i].stamp) + 0.5);
  kept[kepts++] = (device_process_sample_t){device, {pid, stamp, pct > 100 ? 100 : pct, 0, 0, 0}};
  followed[i].stamp = stamp;
  followed[i].ticks = ticks;
}

static int load(void) {
  const char *path = getenv("NVML_STAND_IN");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512], word[64], text[128];
  int index, a, b;
  unsigned pid, sm, enc, dec;
  long long bytes;
  unsigned long long stamp, total, used;
  if (!file) return LIBRARY_NOT_FOUND;
  memset(&now, 0, sizeof now);
  strcpy(now.driver, "570.00.00");
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "%63s", word) != 1) continue;
    if (!strcmp(word, "crash")) { fclose(file); raise(SIGSEGV); }
    if (sscanf(line, "hang %d", &a) == 1) sleep(a);
    if (sscanf(line, "init %d", &a) == 1) now.init = a;
    if (sscanf(line, "driver %79s", text) == 1) { text[79] = 0; strcpy(now.driver, text); }
    if (sscanf(line, "layout %63s", text) == 1) now.large = !strcmp(text, "large");
    if (sscanf(line, "list_sleep_us %d", &a) == 1) now.list_sleep_us = a;
    if (sscanf(line, "mean %d", &a) == 1) now.mean = a;
    if (sscanf(line, "device %d %95s %llu %llu", &index, text, &total, &used) == 4 && index < DEVICES) {
      strcpy(now.device[index].uuid, text);
      now.device[index].total = total;
      now.device[index].used = used;
      if (index >= now.devices) now.devices = index + 1;
    }
    if (sscanf(line, "memcode %d %d", &index, &a) == 2) now.device[index].memcode = a;
    if (sscanf(line, "mig %d %d", &index, &a) == 2) now.device[index].mig = a;
    if (sscanf(line, "util %d %d", &index, &a) == 2) now.device[index].util = a;
    if (sscanf(line, "utilcode %d %d", &index, &a) == 2) now.device[index].utilcode = a;
    if (sscanf(line, "proc %d %1s %u %lld", &index, text, &pid, &bytes) == 4 && now.procs < MANY)
      now.proc[now.procs++] = (proc_t){index, text[0], pid, (unsigned long long)bytes};
    if (sscanf(line, "sample %d %u %llu %u %u %u", &index, &pid, &stamp, &sm, &enc, &dec) == 6 && now.samples < MANY)
      now.sample[now.samples++] = (device_process_sample_t){index, {pid, stamp, sm, 0, enc, dec}};
    if (sscanf(line, "follow %d %u", &index, &pid) == 2) follow(index, pid);
    if (sscanf(line, "devsample %d %llu %d", &index, &stamp, &b) == 3 && now.busies < MANY)
      now.busy[now.busies++] = (busy_t){index, stamp, (unsigned)b};
  }
  fclose(file);
  return now.init;
}

static int of(void *handle) { return (int)((char *)handle - (char *)1); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return load(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
  switch (code) {
    case 18: return "Driver/library version mismatch";
    case 3: return "Not Supported";
    case 9: return "Driver Not Loaded";
    default: return "stand-in error";
  }
}
int nvmlSystemGetDriverVersion(char *out, unsigned length) { load(); snprintf(out, length, "%s", now.driver); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { load(); *count = now.devices; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (char *)1 + index; return OK; }
int nvmlDeviceGetName(void *handle, char *out, unsigned length) { (void)handle; snprintf(out, length, "Stand-in"); return OK; }
int nvmlDeviceGetUUID(void *handle, char *out, unsigned length) {
  load(); snprintf(out, length, "%s", now.device[of(handle)].uuid); return OK;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
  load();
  if (now.device[of(handle)].mig < 0) return NOT_SUPPORTED;
  *current = *pending = now.device[of(handle)].mig;
  return OK;
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *out) {
  load();
  device_t *d = &now.device[of(handle)];
  if (d->memcode) return d->memcode;
  out[0] = d->total; out[1] = d->total - d->used; out[2] = d->used;
  return OK;
}
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *out) {
  load(); stand_in_utils++; out[0] = now.device[of(handle)].util; out[1] = 0; return OK;
}

static int listed(void *handle, char kind, unsigned *count, char *out) {
  load();
  stand_in_lists++;
  if (now.list_sleep_us) usleep(now.list_sleep_us);
  size_t size = now.large ? sizeof(large_t) : sizeof(small_t);
  unsigned found = 0, room = *count;
  for (int i = 0; i < now.procs; i++) {
    proc_t *p = &now.proc[i];
    if (p->device != of(handle) || p->kind != kind) continue;
    if (out && found < room) {
      large_t record = {p->pid, p->memory, 0xFFFFFFFFu, 0xFFFFFFFFu, 0};
      memcpy(out + found * size, &record, size);
    }
    found++;
  }
  *count = found;
  return found > room || (!out && found) ? INSUFFICIENT_SIZE : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, char *out) { return listed(h, 'C', n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *n, char *out) { return listed(h, 'G', n, out); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *h, unsigned *n, char *out) { return listed(h, 'M', n, out); }
#ifdef LARGE_RECORDS
int nvmlDeviceGetConfComputeMemSizeInfo(void) { return NOT_SUPPORTED; }
#endif

int nvmlDeviceGetProcessUtilization(void *handle, sample_t *out, unsigned *count, unsigned long long since) {
  static sample_t found[MANY];
  static unsigned long long sums[MANY];
  static unsigned each[MANY];
  load();
  stand_in_utils++;
  if (now.device[of(handle)].utilcode) return now.device[of(handle)].utilcode;
  unsigned n = 0;
  for (int i = 0; i < now.samples + kepts; i++) {
    device_process_sample_t *one = i < now.samples ? &now.sample[i] : &kept[i - now.samples];
    sample_t *s = &one->sample;
    if (one->device != of(handle) || s->stamp <= since) continue;
    unsigned j = n;
    if (now.mean) for (j = 0; j < n && found[j].pid != s->pid; j++) {}
    if (j == n) { found[n] = *s; sums[n] = 0; each[n] = 0; n++; }
    sums[j] += s->sm; each[j]++;
    if (s->stamp > found[j].stamp) found[j].stamp = s->stamp;
  }
  unsigned kept = 0;
  for (unsigned j = 0; j < n; j++) {
    if (now.mean) found[j].sm = (unsigned)((double)sums[j] / each[j] + 0.5);
    if (found[j].sm || found[j].enc || found[j].dec) found[kept++] = found[j];
  }
  if (!kept) return NOT_FOUND;
  if (!out || *count < kept) { *count = kept; return INSUFFICIENT_SIZE; }
  memcpy(out, found, kept * sizeof *out);
  *count = kept;
  return OK;
}

int nvmlDeviceGetSamples(void *handle, int type, unsigned long long since, int *value_type, unsigned *count, device_sample_t *out) {
  load();
  (void)type;
  *value_type = 1;
  unsigned n = 0;
  for (int i = 0; i < now.busies; i++) {
    if (now.busy[i].device != of(handle) || now.busy[i].stamp <= since) continue;
    if (out && n < *count) { out[n].stamp = now.busy[i].stamp; out[n].value.ull = 0; out[n].value.u = now.busy[i].pct; }
    n++;
  }
  *count = n;
  return n ? OK : NOT_FOUND;
}
