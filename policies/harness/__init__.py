"""The paired ON/OFF harness: what is asked for, what was measured, and what may be concluded (all pure)."""
