// Package docs runs the commands of the documents against a real cluster, and wants
// to see what the documents show.
//
// A command stands in a block that is marked console, behind "$ "; a backslash at the
// end of a line continues it. The lines below it are what it writes, on stdout and
// stderr: they must come in this order, others may stand between them, blanks count as
// one, and "…" stands for anything within a line. A command exits with 0, or as a
// comment at its end says: "# exits with 3".
package docs
