"""The steps that flows are made of, and the forms of reports."""
