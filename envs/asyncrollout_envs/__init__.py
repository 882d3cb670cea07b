"""The environments that come with asyncrollout, found through the entry points of group `asyncrollout.envs`."""
