"""The product's face: command line, store, settings, fleet, conformance kit, SDK, demo."""
