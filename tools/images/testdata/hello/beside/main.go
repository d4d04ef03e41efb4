// Command beside lies beside another in its image.
package main

func main() {}
