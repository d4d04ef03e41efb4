package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

const (
	// maxHeaderBytes and maxBodyBytes bound what is read of an answer.
	maxHeaderBytes = 16 << 10
	maxBodyBytes   = 200
)

// httpCheck asks an endpoint on this node.
type httpCheck struct {
	endpoint
	path   string
	secure bool
}

func newHTTPCheck(c gate.HTTPCheck) Check {
	return httpCheck{endpoint{c.Host, c.Port}, c.Path, c.Scheme == corev1.URISchemeHTTPS}
}

// Check implements [Check].
func (c httpCheck) Check(ctx context.Context, node *corev1.Node) error {
	return c.askFor(ctx, node, func(address string) question {
		return httpGet{host: address, path: c.path, secure: c.secure}.ask
	})
}

// httpGet is a question by HTTP. The server is healthy if its answer is a
// success; a redirect tells of another place, and is none.
type httpGet struct {
	// host is what the request calls the server.
	host   string
	path   string
	secure bool
}

func (g httpGet) ask(ctx context.Context, connection net.Conn) error {
	target, err := url.ParseRequestURI(g.path)
	if err != nil {
		return fmt.Errorf("reading the path: %w", err)
	}
	target.Scheme, target.Host = "http", g.host
	if g.secure {
		target.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	request.Header.Set("User-Agent", userAgent)
	answer, err := roundTrip(connection, request, &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // as by a kubelet's probe: it asks for health, not for identity
	})
	if err != nil {
		return fmt.Errorf("GET %s: %w", g.path, err)
	}
	defer func() { _ = answer.Body.Close() }() // only read
	if answer.StatusCode >= 200 && answer.StatusCode < 300 {
		return nil
	}
	return fmt.Errorf("GET %s: %s%s", g.path, answer.Status, excerpt(answer.Body))
}

const userAgent = "nodegate-agent"

// roundTrip makes one request on a connection and follows nothing: no redirect,
// and no proxy of the environment. An error is in a person's words.
func roundTrip(connection net.Conn, request *http.Request, transport *http.Transport) (*http.Response, error) {
	transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return connection, nil }
	transport.DisableKeepAlives = true
	transport.DisableCompression = true
	transport.MaxResponseHeaderBytes = maxHeaderBytes
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return nil, unanswered(request.Context(), err)
	}
	return answer, nil
}

// unanswered says in a person's words why no answer came from who accepted.
func unanswered(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return errors.New("hung: it accepts, and does not answer in time")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it accepts, and hangs up without an answer")
	}
	return err
}

// excerpt is the beginning of an answer's body, behind a colon, if there is one.
func excerpt(body io.Reader) string {
	data, err := io.ReadAll(io.LimitReader(body, maxBodyBytes))
	text := strings.TrimSpace(strings.ToValidUTF8(string(data), ""))
	if err != nil || text == "" {
		return ""
	}
	return ": " + text
}
