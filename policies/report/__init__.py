"""The report of a harness run: rows and decision in, one document out, and its text for a terminal (all pure)."""

from policies.report.build import build, read_record
from policies.report.document import Report, as_dict
from policies.report.sections import Section, Table, sections
from policies.report.text import render

__all__ = ["Report", "Section", "Table", "as_dict", "build", "read_record", "render", "sections"]
