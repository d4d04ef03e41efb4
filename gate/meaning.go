package gate

// Meaning says in a few words, after a colon or "because", what a verdict
// stands for. Every component explains a Node in these words.
func (v Verdict) Meaning() string {
	switch v {
	case Bypassed:
		return "a person bypassed the gate for a limited time"
	case Absent:
		return "there is no heartbeat of the node's agent"
	case Malformed:
		return "the heartbeat cannot be read"
	case OtherNode:
		return "the heartbeat was written for another Node object of this name"
	case OtherBoot:
		return "the heartbeat is not of the node's current boot"
	case NotReady:
		return "the node's agent says that it does not serve"
	case FromFuture:
		return "the heartbeat's time is too far ahead"
	case Expired:
		return "the heartbeat is too old"
	case Fresh:
		return "the node's agent serves"
	}
	return "unknown verdict"
}
