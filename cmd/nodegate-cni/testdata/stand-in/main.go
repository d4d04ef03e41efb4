// Command stand-in is a CNI plugin for tests: it notes each call, with what it was
// called with, in a file, and prints the result that its configuration holds, or
// else the one that it was given.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	if os.Getenv("CNI_COMMAND") == "VERSION" {
		fmt.Println(`{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}`)
		return
	}
	var config struct {
		Type               string
		Log                string
		Result, PrevResult json.RawMessage
	}
	input, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.Unmarshal(input, &config)
	}
	if err == nil {
		err = note(config.Log, map[string]any{"command": os.Getenv("CNI_COMMAND"), "type": config.Type, "prevResult": config.PrevResult})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv("CNI_COMMAND") != "ADD" {
		return
	}
	if config.Result == nil {
		config.Result = config.PrevResult
	}
	os.Stdout.Write(config.Result)
}

func note(path string, call any) error {
	line, err := json.Marshal(call)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintf(file, "%s\n", line)
	return err
}
