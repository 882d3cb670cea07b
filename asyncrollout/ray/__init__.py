"""Everything that needs Ray: environments and drivers on the nodes of a cluster. Only this folder imports ray."""
