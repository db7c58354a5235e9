"""The protection agent: one small process a node that needs neither Prefect, a network nor a database to protect."""
