package hold

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// errClosed is what the agent said last.
type errClosed struct {
	reason string
	again  bool
}

func (e errClosed) Error() string { return e.reason }

// ask returns nil as soon as the agent lets the pod go. Until then it tells each
// reason why not; its error says why the conversation ended, or is the reason of an
// attempt that is in vain.
func ask(ctx context.Context, socket string, q question, told func(errClosed)) error {
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", socket, bare(err))
	}
	defer func() { _ = connection.Close() }() // all was said
	defer context.AfterFunc(ctx, func() { _ = connection.Close() })()
	if err := writeLine(connection, q); err != nil {
		return fmt.Errorf("asking at %s: %w", socket, bare(err))
	}
	lines := bufio.NewReaderSize(connection, maxLineBytes)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("asking at %s: the agent hung up", socket)
		}
		if err != nil {
			return fmt.Errorf("asking at %s: %w", socket, bare(err))
		}
		var a answer
		if err := json.Unmarshal(line, &a); err != nil || a.Version != version {
			return fmt.Errorf("asking at %s: %.80q is no answer of version %d", socket, line, version)
		}
		if a.Open {
			return nil
		}
		said := errClosed{a.Reason, a.Again}
		told(said)
		if said.again {
			return said
		}
	}
}

// errTime: the time was over, and nothing else.
var errTime = errors.New("no answer in time")

// bare is an error in the words of the system, without addresses.
func bare(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return errTime
	}
	if number := syscall.Errno(0); errors.As(err, &number) {
		return number
	}
	return err
}
