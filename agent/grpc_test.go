package agent

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nodegate/nodegate/gate"
)

// serveGRPC runs a server of the real library on the listener, with its health
// service unless there is none.
func serveGRPC(t *testing.T, listener net.Listener, service healthpb.HealthServer) {
	t.Helper()
	server := grpc.NewServer()
	if service != nil {
		healthpb.RegisterHealthServer(server, service)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// stuckHealth never answers, and says that it was asked; brokenHealth fails.
type stuckHealth struct {
	healthpb.UnimplementedHealthServer
	hung chan struct{}
}

func (s stuckHealth) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s.hung <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

type brokenHealth struct {
	healthpb.UnimplementedHealthServer
}

func (brokenHealth) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return nil, status.Error(codes.Internal, "the data path is dead")
}

func TestGRPCCheck(t *testing.T) {
	service := health.NewServer()
	service.SetServingStatus("mesh.Down", healthpb.HealthCheckResponse_NOT_SERVING)
	service.SetServingStatus("mesh.Later", healthpb.HealthCheckResponse_UNKNOWN)
	good, broken, none, http1 := listenTCP(t), listenTCP(t), listenTCP(t), listenTCP(t)
	serveGRPC(t, good, service)
	serveGRPC(t, broken, brokenHealth{})
	serveGRPC(t, none, nil)
	serveHTTP(t, http1)
	for name, tc := range map[string]struct {
		listener      net.Listener
		service, want string
	}{
		"the server serves":     {good, "", ""},
		"a service does not":    {good, "mesh.Down", `gRPC health: service "mesh.Down" is NOT_SERVING`},
		"a service is to come":  {good, "mesh.Later", `service "mesh.Later" is UNKNOWN`},
		"a service is unknown":  {good, "mesh.Up", `gRPC health: the server knows no service "mesh.Up"`},
		"the service fails":     {broken, "", `gRPC health: status "13": the data path is dead`},
		"no health service":     {none, "", "the server does not offer grpc.health.v1.Health"},
		"a server of HTTP/1":    {http1, "", "gRPC health: "},
		"a service of any name": {good, "ä" + strings.Repeat("x", 1<<15), "the server knows no service"},
	} {
		t.Run(name, func(t *testing.T) {
			check := newGRPCCheck(gate.GRPCCheck{Host: "127.0.0.1", Port: portOf(t, tc.listener), Service: tc.service})
			expectAnswer(t, ask(t, check, nil), tc.want)
		})
	}
	t.Run("hung", func(t *testing.T) {
		stuck, listener := stuckHealth{hung: make(chan struct{})}, listenTCP(t)
		serveGRPC(t, listener, stuck)
		check := newGRPCCheck(gate.GRPCCheck{Host: "127.0.0.1", Port: portOf(t, listener)})
		expectAnswer(t, askUntil(t, check, stuck.hung), "gRPC health: hung: it accepts, and does not answer in time")
	})
}

func TestSocketCheck_GRPC(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	check, err := newSocketCheck(gate.SocketCheck{Path: path, GRPC: &gate.GRPCHealth{Service: "mesh"}})
	if err != nil {
		t.Fatal(err)
	}
	expectAnswer(t, ask(t, check, nil), "socket "+path+": absent")
	service := health.NewServer()
	serveGRPC(t, listen(t, path), service)
	expectAnswer(t, ask(t, check, nil), "socket "+path+`: gRPC health: the server knows no service "mesh"`)
	service.SetServingStatus("mesh", healthpb.HealthCheckResponse_SERVING)
	expectAnswer(t, ask(t, check, nil), "")
	service.Shutdown()
	expectAnswer(t, ask(t, check, nil), `service "mesh" is NOT_SERVING`)

	stuck := path + "2"
	hung := hang(t, listen(t, stuck))
	check, err = newSocketCheck(gate.SocketCheck{Path: stuck, GRPC: &gate.GRPCHealth{}})
	if err != nil {
		t.Fatal(err)
	}
	expectAnswer(t, askUntil(t, check, hung), "socket "+stuck+": gRPC health: hung: it accepts, and does not answer in time")
}

func TestServingStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want uint64
		bad  bool
	}{
		"serving":                {"\x00\x00\x00\x00\x02\x08\x01", 1, false},
		"zero is left out":       {"\x00\x00\x00\x00\x00", 0, false},
		"fields of the future":   {"\x00\x00\x00\x00\x06\x12\x02ok\x08\x01", 1, false},
		"said twice: the latter": {"\x00\x00\x00\x00\x04\x08\x01\x08\x02", 2, false},
		"another type":           {"\x00\x00\x00\x00\x03\x0a\x01\x01", 0, false},
		"empty":                  {"", 0, true},
		"compressed":             {"\x01\x00\x00\x00\x02\x08\x01", 0, true},
		"two messages":           {"\x00\x00\x00\x00\x02\x08\x01\x00\x00\x00\x00\x02\x08\x01", 0, true},
		"cut short":              {"\x00\x00\x00\x00\x03\x08\x01", 0, true},
		"an unfinished number":   {"\x00\x00\x00\x00\x02\x08\x80", 0, true},
		"no field":               {"\x00\x00\x00\x00\x01\x07", 0, true},
	} {
		got, err := servingStatus([]byte(tc.body))
		if got != tc.want || (err != nil) != tc.bad {
			t.Errorf("%s: status %d, error %v", name, got, err)
		}
	}
	if got := servingName(7); got != "in status 7" {
		t.Error(got)
	}
}
