"""The tenants of a node: what the control plane says of them, and what their clients may do."""
