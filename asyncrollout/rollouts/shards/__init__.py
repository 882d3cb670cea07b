"""Whole groups played by driver processes elsewhere ("shards"); sampler, ledger and journal stay with the trainer.

In the order in which a group passes through:

sharded_player  places a group on the least loaded shard, and again if that shard is lost
shard_set       starts, replaces, adds and removes shards; holds their policies back while weights change
least_loaded    which shard is next, whatever their number
placed_group    what a group has brought so far: enough to continue it on another shard
shard_link      the trainer's end of one shard, from its start to its end
shard_messages  what both say
shard_channel   how: frames, over TCP or within one event loop
shard_setup     what a shard is made of, and how that travels
shard_server    the shard: its own pool and policies; plays groups on request
shard_reporting ... and reports what happens to the one ledger and journal
local_shards    shards on the trainer's own event loop, for tests and simulations
"""
