"""The node's protection sections: its own and the fleet's, each versioned; what is in force is the stricter of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from nodes.journal import Journal
from policies.refusal import Refused
from policies.section import Section, SectionErrors, digest, parse_section
from policies.section.changes import Change, changes
from policies.section.effective import effective
from policies.views import NodeView, Reason

__all__ = ["SCOPES", "Kept", "Scope", "Sections", "checked_scope"]

Scope = Literal["node", "fleet"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
STRICTEST = parse_section("[node]\npause = true")


@dataclass(frozen=True, slots=True)
class Kept:
    """One section as it was set. Version 0 is none. ``unknown``: what it said is not known, so all fleet work is held."""

    version: int = 0
    text: str = ""
    section: Section = Section()  # noqa: RUF009
    unknown: Reason | None = None


def checked_scope(scope: str) -> Scope:
    for known in SCOPES:
        if scope == known:
            return known
    raise Refused("BAD_PARAMETER", f"scope {scope!r}", "a section is the node's or the fleet's", "node or fleet")


class Sections:
    """Versions count through both scopes, so any change of either is a new version."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: dict[Scope, Kept] = {"node": self._newest("node"), "fleet": self._newest("fleet")}
        self.in_force = self._merged(self._kept)

    def _newest(self, scope: Scope) -> Kept:
        row = self._journal.newest_section(scope)
        if row is None:
            # What was protected is not known where the journal was lost: nothing runs until its owner says it anew, and the
            # fleet's that there was none is said by an empty one.
            return Kept(section=STRICTEST, unknown=_lost(scope)) if self._journal.section_lost(scope) else Kept()
        try:
            return Kept(int(row["version"]), row["text"], parse_section(row["text"]))
        except SectionErrors as errors:
            # Set under another version of the product. Until its owner sets it anew nothing runs beside what it protected.
            self._journal.write(
                "PROTECTION_CONFIG_ERROR", {"version": row["version"], "scope": scope, "errors": str(errors)[:2000]}
            )
            return Kept(
                int(row["version"]), row["text"], STRICTEST, _not_understood(scope, int(row["version"]), errors)
            )

    @staticmethod
    def _merged(kept: dict[Scope, Kept]) -> Section:
        fleet = kept["fleet"]
        return effective(kept["node"].section, fleet.section if fleet.version or fleet.unknown is not None else None)

    @property
    def lost(self) -> list[Scope]:
        """Those that were lost with the journal and not set since: until they are, all fleet work is held."""
        return [scope for scope, kept in self._kept.items() if kept.version == 0 and kept.unknown is not None]

    @property
    def unknown(self) -> tuple[Reason, ...]:
        """Why all fleet work is held for a section that is not known."""
        return _unknown(self._kept)

    @property
    def owner_pause(self) -> bool:
        """Whether an owner paused all fleet work; one whose section is not known has not."""
        return _paused(self._kept)

    @property
    def version(self) -> int:
        return max(kept.version for kept in self._kept.values())

    @property
    def text(self) -> str:
        """What is in force, as text: a run and its resume are under the same one."""
        fleet = self._kept["fleet"]
        return self._kept["node"].text + (f"\n# the fleet's section\n{fleet.text}" if fleet.version else "")

    def of(self, scope: Scope) -> Kept:
        return self._kept[scope]

    def would_be(self, text: str, scope: Scope) -> Section:
        """What would be in force with ``text`` in the place of that scope's section. Raises ``SectionErrors``."""
        return self._merged(self._with(text, scope))

    def _with(self, text: str, scope: Scope) -> dict[Scope, Kept]:
        return self._kept | {scope: Kept(1, text, parse_section(text))}

    def said_in(self, view: NodeView, text: str | None = None, scope: Scope = "node") -> NodeView:
        """The view with the reasons of sections that are not known in the place of the pause that stands for them.

        Args:
            text: what would be in the place of that scope's section; None: nothing would.
        """
        kept = self._kept if text is None else self._with(text, scope)
        unknown = _unknown(kept)
        return replace(view, pause=_paused(kept), unknown=unknown) if unknown else view

    def changes(self, text: str, scope: Scope) -> list[Change]:
        """What ``text`` changes in its own scope. Raises ``SectionErrors``."""
        return changes(self._kept[scope].section, parse_section(text))

    def set(self, text: str, by: str, scope: Scope) -> int:
        """Put in force. Raises ``SectionErrors`` and changes nothing when it is not valid."""
        section = parse_section(text)
        version = self._journal.add_section(text, digest(text), by, scope)
        self._kept[scope] = Kept(version, text, section)
        self.in_force = self._merged(self._kept)
        return version

    def show(self, version: int | None, scope: Scope) -> dict[str, Any]:
        """A version as it was set; by default the scope's newest. Version 0 is the empty section.

        Raises:
            Refused: SECTION_UNKNOWN.
        """
        wanted = self._kept[scope].version if version is None else version
        if wanted == 0:
            return {"version": 0, "text": "", "set_at": None, "set_by": None, "digest": None, "scope": scope}
        row = self._journal.section(wanted)
        if row is None:
            raise Refused(
                "SECTION_UNKNOWN",
                f"section version {wanted}",
                "there is none",
                "cotenant protection show NODE --versions lists them",
            )
        return row

    def versions(self) -> list[dict[str, Any]]:
        """Every version, newest first, without its text."""
        in_force = {kept.version for kept in self._kept.values()}
        return [row | {"in_force": row["version"] in in_force} for row in self._journal.section_versions()]


def _unknown(kept: dict[Scope, Kept]) -> tuple[Reason, ...]:
    return tuple(each.unknown for each in kept.values() if each.unknown is not None)


def _paused(kept: dict[Scope, Kept]) -> bool:
    return any(each.section.node.pause for each in kept.values() if each.unknown is None)


def _lost(scope: Scope) -> Reason:
    why = f"the {scope}'s section was lost with the node's journal, and none was set since"
    return Reason("JOURNAL_SET_ASIDE", why, _SET[scope])


def _not_understood(scope: Scope, version: int, errors: SectionErrors) -> Reason:
    why = f"the {scope}'s section (version {version}) cannot be read by this version: {errors.errors[0]}"
    return Reason("PROTECTION_CONFIG_ERROR", why, f"correct it and set it: {_SET[scope]}")


_SET: dict[Scope, str] = {
    "node": "cotenant protection set NODE FILE",
    "fleet": "cotenant protection set NODE FILE --fleet (an empty FILE where the fleet has none)",
}
