"""Faults put into the code on purpose, each of which must turn named tests red.

A mutant is one edit of one file (``Mutant``): the text before, which stands there exactly once, the text after, and the tests that must
notice. ``catalogue`` holds them, one list a subject. To add one: append a ``Mutant`` to a list there. A mutant that survives means that the
named tests cannot see that fault: mend the tests, not the mutant.

``make mutants`` runs all of them; ``tests/mutants/test_mutants.py`` (in CI) runs those marked ``quick``.
"""
