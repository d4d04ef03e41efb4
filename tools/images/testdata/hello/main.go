// Command hello is a small program to make an image of.
package main

import "github.com/nodegate/nodegate/internal/version"

func main() { println("hello", version.String()) }
