"""Sources: lines, what they say, counts, the check for timers, files that rotate, what cannot be read."""

from __future__ import annotations

from tests.mutants.runner import Mutant

__all__ = ["SOURCES"]

SPLITTER = "policies/sources/splitter.py"
MEANING = "policies/sources/meaning.py"
JSON_LINES = "policies/sources/json_lines.py"
PROGRESS = "policies/sources/progress.py"
STAMPS = "policies/sources/stamps.py"
TIMED = "policies/sources/timed.py"
FOLLOWER = "nodes/sources/follower.py"
FEED = "nodes/sources/feed.py"

T_SPLITTER = "tests/unit/test_sources_splitter.py"
T_MEANING = "tests/unit/test_sources_meaning.py"
T_PROGRESS = "tests/unit/test_sources_progress.py"
T_TIMED = "tests/unit/test_sources_timed.py"
T_FOLLOWER = "tests/node/test_sources_follower.py"
T_CASES = "tests/node/test_sources_cases.py"
T_HUB = "tests/node/test_sources_hub.py"

SOURCES = [
    Mutant(
        "a line cut between two reads loses its beginning",
        SPLITTER,
        "        if rest:\n            self._extend(rest)\n        return records\n\n    def _feed_careful",
        "        return records\n\n    def _feed_careful",
        (f"{T_SPLITTER}::test_case_055_a_partial_line_is_held",),
    ),
    Mutant(
        "a line one byte too long is kept",
        SPLITTER,
        "if len(self._held) + len(part) > MAX_RECORD_BYTES:",
        "if len(self._held) > MAX_RECORD_BYTES:",
        (
            f"{T_SPLITTER}::test_the_cap_does_not_depend_on_the_cuts",
            f"{T_SPLITTER}::test_case_052_a_line_without_end_is_dropped_in_bounded_memory",
        ),
    ),
    Mutant(
        "true is 1",
        JSON_LINES,
        "        return value is wanted\n    return bool(value == wanted)",
        "        return bool(value == wanted)\n    return bool(value == wanted)",
        (f"{T_MEANING}::test_an_event_counts_and_others_do_not", T_MEANING),
    ),
    Mutant(
        "a number with a thousands separator is read up to it",
        MEANING,
        "if not (text.isascii() and text.isdigit()) and _NUMBER.fullmatch(text) is None:\n"
        "        return None\n    value = float(text)",
        "if (found := _NUMBER.match(text)) is None:\n        return None\n    value = float(found[0])",
        (f"{T_MEANING}::test_log_lines_count_or_carry_a_counter",),
    ),
    # -- counts
    Mutant(
        "what is not known of a window counts as time without progress",
        PROGRESS,
        "known_s = window_s - counted.void_s - counted.unknown_s",
        "known_s = window_s",
        (T_PROGRESS,),
        quick=True,
    ),
    Mutant(
        "a counter that restarts is progress",
        PROGRESS,
        "                    restarted = True\n                    self.resets += 1\n",
        "                    grown += value\n",
        (f"{T_PROGRESS}::test_case_064_a_counter_that_restarts_starts_a_new_segment",),
    ),
    Mutant(
        "an open step counts more than one event",
        PROGRESS,
        "return min(1.0, elapsed / longest) *",
        "return elapsed / longest *",
        (f"{T_PROGRESS}::test_an_open_step_counts_elapsed_over_the_longest_known_at_most_one",),
    ),
    Mutant(
        "the step that straddles a window's end is counted whole",
        PROGRESS,
        "share = (when_s - low) / (high - low)",
        "share = 1.0",
        (f"{T_PROGRESS}::test_a_step_is_spread_over_its_duration",),
    ),
    Mutant(
        "a line that waited longest is taken to have come at once",
        STAMPS,
        "least = min(delays)",
        "least = max(delays)",
        (f"{T_PROGRESS}::test_stamps_of_any_origin_land_where_they_were_written",),
    ),
    # -- the check for timers
    Mutant(
        "a timer is told by the coefficient of variation",
        TIMED,
        "if spread >= MAX_SPREAD or period is None:",
        "if cv >= MAX_SPREAD or period is None:",
        (f"{T_TIMED}::test_a_timer_is_seen_also_with_late_lines",),
    ),
    Mutant(
        "a counter on a timer is no source, whatever it brings",
        TIMED,
        "    if not _same_amounts([amount for _, amount in pairs]):",
        "    if False:",
        (f"{T_TIMED}::test_a_counter_printed_on_a_timer_is_a_good_source",),
    ),
    # -- files
    Mutant(
        "the end of a rotated file is not read",
        FOLLOWER,
        "        self._take(old, reading, MAX_READ_BYTES)\n        unread = reading.behind\n",
        "        unread = reading.behind\n",
        (f"{T_FOLLOWER}::test_any_sequence_of_appends_and_rotations_gives_each_line_once", T_FOLLOWER),
    ),
    Mutant(
        "a file that appears is read from its end",
        FOLLOWER,
        "start = self._known.get(fresh.key, Start(0))",
        "start = self._known.get(fresh.key, Start(info.st_size))",
        (f"{T_FOLLOWER}::test_a_new_file_is_read_from_its_top_also_in_a_new_directory",),
    ),
    Mutant(
        "a deleted file stays readable",
        FOLLOWER,
        "if since is None or now_s - since < MISSING_GRACE_S or self._now is None:",
        "if since is None or now_s - since >= MISSING_GRACE_S or self._now is None:",
        (f"{T_FOLLOWER}::test_a_deleted_file_is_unreadable_after_a_grace_and_read_again_when_it_comes_back",),
    ),
    Mutant(
        "a phase that cannot be read is over",
        FEED,
        '        if self.unreadable is not None:\n            return "on"\n',
        '        if self.unreadable is not None:\n            return "off"\n',
        (f"{T_HUB}::test_a_phase_that_cannot_be_read_counts_as_on",),
    ),
    Mutant(
        "a phase told before the newest MiB is over",
        FEED,
        'return self.told if self.told is not None else ("off" if self.whole else "on")',
        'return self.told if self.told is not None else "off"',
        (f"{T_HUB}::test_a_phase_older_than_the_scan_counts_as_on",),
    ),
    Mutant(
        "a source that cannot be read is readable",
        FEED,
        "            track=progress.track,\n            readable=bad is None,",
        "            track=progress.track,\n            readable=True,",
        (T_HUB, T_FOLLOWER),
    ),
]
