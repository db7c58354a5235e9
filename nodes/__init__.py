"""What runs on a node: the agent with its sources, meters and jobs, its client, the Prefect worker and the mirror."""
