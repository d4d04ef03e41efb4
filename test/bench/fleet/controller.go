//go:build linux

package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nodegate/nodegate/test/cluster"
)

// controller is a running nodegate-controller.
type controller struct {
	cmd             *exec.Cmd
	log             bytes.Buffer
	health, metrics string
	ended           chan struct{}
}

// start starts the program. It returns when it is ready, and how long that took.
func start(ctx context.Context, program, kubeconfig string) (*controller, time.Duration, error) {
	c := &controller{ended: make(chan struct{})}
	for _, address := range []*string{&c.health, &c.metrics} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, 0, err
		}
		*address = listener.Addr().String()
		_ = listener.Close()
	}
	c.cmd = exec.Command(program, "--config=", "--kubeconfig="+kubeconfig, "--health-address="+c.health, "--metrics-address="+c.metrics)
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	began := time.Now()
	if err := c.cmd.Start(); err != nil {
		return nil, 0, err
	}
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait() // how it ends is of no account
	}()
	err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		_, err := get(ctx, "http://"+c.health+"/readyz")
		return err == nil, err
	})
	if err != nil {
		c.kill()
		return nil, 0, fmt.Errorf("waiting for the controller: %w\n%s", err, c.log.String())
	}
	return c, time.Since(began), nil
}

// kill ends it unasked. One that has ended stays so.
func (c *controller) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}

// counter is the sum of a metric's series that have all of these labels.
func (c *controller) counter(ctx context.Context, name string, labels ...string) (int, error) {
	text, err := get(ctx, "http://"+c.metrics+"/metrics")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(series, name+"{") {
			continue
		}
		wanted := true
		for _, label := range labels {
			wanted = wanted && strings.Contains(series, label)
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("reading %q: %w", line, err)
		}
		if wanted {
			sum += number
		}
	}
	return int(sum), nil
}

func (c *controller) memory() (now, most float64, err error) { return memory(c.cmd.Process) }

// memory is the resident set of a process now and at its highest, in MiB.
func memory(process *os.Process) (now, most float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			now = kib / 1024
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kib); err == nil {
			most = kib / 1024
		}
	}
	return now, most, nil
}

// cpu is the processor time that it has used.
func (c *controller) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The second field, in brackets, may hold blanks; utime and stime are the
	// 14th and 15th, in hundredths of a second.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, errUser := strconv.ParseInt(fields[11], 10, 64)
	system, errSystem := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(errUser, errSystem)
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return string(body), err
}
