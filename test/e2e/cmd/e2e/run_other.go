//go:build !linux

package main

import (
	"context"
	"errors"
)

func run(context.Context, []string) (int, error) {
	return 0, errors.New("the end-to-end tests run containers and need Linux: Debian, as root")
}
