package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// grpcCheck asks an endpoint on this node.
type grpcCheck struct {
	endpoint
	service string
}

func newGRPCCheck(c gate.GRPCCheck) Check { return grpcCheck{endpoint{c.Host, c.Port}, c.Service} }

// Check implements [Check].
func (c grpcCheck) Check(ctx context.Context, node *corev1.Node) error {
	return c.askFor(ctx, node, func(address string) question {
		return grpcHealth{host: address, service: c.service}.ask
	})
}

// grpcHealth is a question by gRPC's health protocol, grpc.health.v1. One message
// each way is all that this needs of gRPC (docs/decisions/017).
type grpcHealth struct {
	// host is what the request calls the server.
	host    string
	service string
}

const (
	grpcHealthPath  = "/grpc.health.v1.Health/Check"
	grpcContentType = "application/grpc"

	// Fields of the messages HealthCheckRequest and HealthCheckResponse.
	grpcServiceField, grpcServingField = 1, 1

	grpcServing = 1
	// grpcPrefix precedes a message: whether it is compressed, and its length.
	grpcPrefix = 5
)

// Codes of gRPC with a meaning in the health protocol.
const (
	grpcOK            = "0"
	grpcNotFound      = "5"
	grpcUnimplemented = "12"
)

func (g grpcHealth) ask(ctx context.Context, connection net.Conn) error {
	if err := g.call(ctx, connection); err != nil {
		return fmt.Errorf("gRPC health: %w", err)
	}
	return nil
}

func (g grpcHealth) call(ctx context.Context, connection net.Conn) error {
	target := url.URL{Scheme: "http", Host: g.host, Path: grpcHealthPath}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), strings.NewReader(g.message()))
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	request.Header.Set("User-Agent", userAgent)
	request.Header.Set("Content-Type", grpcContentType)
	request.Header.Set("TE", "trailers")
	http2 := new(http.Protocols)
	http2.SetUnencryptedHTTP2(true)
	answer, err := roundTrip(connection, request, &http.Transport{Protocols: http2})
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only read
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxBodyBytes))
	if err != nil {
		return unanswered(ctx, err)
	}
	return g.judge(answer, body)
}

// message is the request as it is sent.
func (g grpcHealth) message() string {
	var message []byte
	if g.service != "" {
		message = protowire.AppendTag(message, grpcServiceField, protowire.BytesType)
		message = protowire.AppendString(message, g.service)
	}
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return string(append(prefix, message...))
}

// judge reads an answer. Its status comes behind the message or, where there is
// none, among the headers.
func (g grpcHealth) judge(answer *http.Response, body []byte) error {
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), grpcContentType) {
		return fmt.Errorf("the answer is not gRPC's but %s", answer.Status)
	}
	fields := answer.Trailer
	if answer.Header.Get("Grpc-Status") != "" {
		fields = answer.Header
	}
	switch code := fields.Get("Grpc-Status"); code {
	case grpcOK:
	case grpcNotFound:
		return fmt.Errorf("the server knows no service %q", g.service)
	case grpcUnimplemented:
		return errors.New("the server does not offer " + strings.TrimSuffix(grpcHealthPath, "/Check")[1:])
	default:
		return fmt.Errorf("status %q%s", code, excerpt(strings.NewReader(fields.Get("Grpc-Message"))))
	}
	status, err := servingStatus(body)
	if err != nil || status == grpcServing {
		return err
	}
	return fmt.Errorf("service %q is %s", g.service, servingName(status))
}

// servingStatus reads the one field of a HealthCheckResponse.
func servingStatus(body []byte) (uint64, error) {
	if len(body) < grpcPrefix || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-grpcPrefix {
		return 0, errors.New("the answer is not one message")
	}
	var status uint64
	for message := body[grpcPrefix:]; len(message) > 0; {
		number, wire, n := protowire.ConsumeField(message)
		if n < 0 {
			return 0, fmt.Errorf("reading the answer: %w", protowire.ParseError(n))
		}
		if number == grpcServingField && wire == protowire.VarintType {
			_, _, tag := protowire.ConsumeTag(message)
			status, _ = protowire.ConsumeVarint(message[tag:])
		}
		message = message[n:]
	}
	return status, nil
}

func servingName(status uint64) string {
	names := []string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}
	if status < uint64(len(names)) {
		return names[status]
	}
	return fmt.Sprintf("in status %d", status)
}
