// Package rights compares what controller and agent are granted with what they ask
// an API server for, by its audit log.
package rights
