"""The command line. Commands compute an ``OperationResult``; one renderer prints it, as text or as JSON."""
