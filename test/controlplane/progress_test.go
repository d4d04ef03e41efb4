package controlplane

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgress_During(t *testing.T) {
	tests := map[string]struct {
		terminal bool
		takes    time.Duration
		want     string
	}{
		"a log gets a line at the start and one a minute": {
			takes: 2*time.Minute + time.Second,
			want:  "building etcd\nbuilding etcd, 1m0s\nbuilding etcd, 2m0s\n",
		},
		"a terminal gets one line that changes and goes": {
			terminal: true,
			takes:    2500 * time.Millisecond,
			want: "\r\x1b[Kbuilding etcd" + "\r\x1b[Kbuilding etcd, 1s" +
				"\r\x1b[Kbuilding etcd, 2s" + "\r\x1b[K",
		},
		"what is over at once is told nevertheless": {want: "building etcd\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				wantErr := errors.New("exit status 1")
				err := newProgress(&log, tc.terminal).during("building etcd", func() error {
					<-time.After(tc.takes) // on the clock of the bubble
					return wantErr
				})
				if !errors.Is(err, wantErr) {
					t.Errorf("error: got %v, want %v", err, wantErr)
				}
				if got := log.String(); got != tc.want {
					t.Errorf("got  %q\nwant %q", got, tc.want)
				}
			})
		})
	}
}
