"""One Raft group on one replica, pure: an ack means that a quorum's disks hold the entry."""
