package gate

import (
	"regexp"
	"sync"
)

// Compiled once, on first use: a program that only needs the names pays nothing.
var (
	heartbeatRegexp = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(HeartbeatExpression) })
	bypassRegexp    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(BypassExpression) })
)
