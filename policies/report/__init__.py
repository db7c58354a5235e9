"""The report of a harness run: rows and judgement in, one document out, and its text for a terminal (all pure).

``policies.report.build.build`` makes the document; ``tasks.reports.build`` calls it with everything it needs.
"""

from policies.report.base import Judgement
from policies.report.build import read_record
from policies.report.document import Report, as_dict
from policies.report.sections import Section, Table, sections
from policies.report.terms import terms
from policies.report.text import render

__all__ = ["Judgement", "Report", "Section", "Table", "as_dict", "read_record", "render", "sections", "terms"]
