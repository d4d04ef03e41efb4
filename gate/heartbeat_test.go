package gate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/gen"
)

const validHeartbeat = "v=1 ready=true time=2026-11-29T11:02:53Z ttl=90s boot=de2d9a80-35f2-44b5-bea4-72f10b303c45 " +
	"node=0deb1067-949c-4b9d-8907-4eaeaea221b2 pod=8125c226-9568-48d0-bda1-f5a076bdacb9 seq=17"

func TestParseHeartbeat(t *testing.T) {
	got, err := gate.ParseHeartbeat(validHeartbeat)
	if err != nil {
		t.Fatal(err)
	}
	want := gate.Heartbeat{
		Ready: true, Time: time.Date(2026, 11, 29, 11, 2, 53, 0, time.UTC), TTL: 90 * time.Second,
		BootID: "de2d9a80-35f2-44b5-bea4-72f10b303c45", NodeUID: "0deb1067-949c-4b9d-8907-4eaeaea221b2",
		Extra: []gate.Token{{Key: "pod", Value: "8125c226-9568-48d0-bda1-f5a076bdacb9"}, {Key: "seq", Value: "17"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestParseHeartbeat_Errors(t *testing.T) {
	for value, want := range map[string]string{
		"":                       `value "" is not of the form`,
		strings.Repeat("x", 513): "value has 513 bytes, at most 512 are allowed",
		strings.Repeat("x", 300): strings.Repeat("x", 120) + "…",
		"v=1 ready=yes":          "v=1 ready=yes",
		validHeartbeat + strings.Repeat("7", 512): "bytes, at most 512",
	} {
		_, err := gate.ParseHeartbeat(value)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseHeartbeat(%.20q…): error %v, want one with %q", value, err, want)
		}
	}
}

// TestHeartbeat_Dates: the expression and the calendar agree on every day of the
// years it allows, and on their edges.
func TestHeartbeat_Dates(t *testing.T) {
	parse := func(date string) error {
		_, err := gate.ParseHeartbeat(strings.Replace(validHeartbeat, "2026-11-29", date, 1))
		return err
	}
	for _, year := range []string{"2019", "2020", "2021", "2023", "2024", "2050", "2096", "2098", "2099", "2100"} {
		inRange := year >= "2020" && year <= "2099"
		for month := range 14 {
			for day := range 33 {
				date := year + "-" + two(month) + "-" + two(day)
				_, calendar := time.Parse(time.DateOnly, date)
				if want, got := inRange && calendar == nil, parse(date) == nil; want != got {
					t.Errorf("date %s: accepted %t, want %t", date, got, want)
				}
			}
		}
	}
}

func two(n int) string { return string([]byte{byte('0' + n/10), byte('0' + n%10)}) }

func TestHeartbeat_Format(t *testing.T) {
	h, err := gate.ParseHeartbeat(validHeartbeat)
	if err != nil {
		t.Fatal(err)
	}
	got, err := h.Format()
	if err != nil || got != validHeartbeat {
		t.Errorf("Format() = %q, %v, want %q", got, err, validHeartbeat)
	}
	for name, tc := range map[string]struct {
		spoil func(h *gate.Heartbeat)
		want  string
	}{
		"a fraction of a second":      {func(h *gate.Heartbeat) { h.Time = h.Time.Add(time.Millisecond) }, "not in whole seconds"},
		"a ttl with a fraction":       {func(h *gate.Heartbeat) { h.TTL = 1500 * time.Millisecond }, "not in whole seconds"},
		"a ttl of zero":               {func(h *gate.Heartbeat) { h.TTL = 0 }, "not of the form"},
		"a ttl beyond the longest":    {func(h *gate.Heartbeat) { h.TTL = gate.MaxTTL + time.Second }, "not of the form"},
		"no boot id":                  {func(h *gate.Heartbeat) { h.BootID = "" }, "not of the form"},
		"a boot id with a blank":      {func(h *gate.Heartbeat) { h.BootID = "a b" }, "not of the form"},
		"no node":                     {func(h *gate.Heartbeat) { h.NodeUID = "" }, "not of the form"},
		"a year before 2020":          {func(h *gate.Heartbeat) { h.Time = time.Unix(0, 0) }, "not of the form"},
		"a token with a blank":        {func(h *gate.Heartbeat) { h.Extra = []gate.Token{{Key: "a", Value: "b c=d"}} }, "holds a blank or an equals sign"},
		"a token's key with an equal": {func(h *gate.Heartbeat) { h.Extra = []gate.Token{{Key: "a=b", Value: "c"}} }, "holds a blank or an equals sign"},
		"too many tokens":             {func(h *gate.Heartbeat) { h.Extra = []gate.Token{{Key: "a", Value: strings.Repeat("b", 500)}} }, "at most 512"},
	} {
		t.Run(name, func(t *testing.T) {
			spoilt := h
			tc.spoil(&spoilt)
			if _, err := spoilt.Format(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// TestHeartbeat_RoundTrip: what is formatted is parsed to the same, and what is
// parsed is formatted to the same.
func TestHeartbeat_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := gen.HeartbeatValue().Draw(t, "value")
		h, err := gate.ParseHeartbeat(value)
		if err != nil {
			return
		}
		formatted, err := h.Format()
		if err != nil || formatted != value {
			t.Fatalf("%q is formatted to %q, error %v", value, formatted, err)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		h := gate.Heartbeat{
			Ready:   rapid.Bool().Draw(t, "ready"),
			Time:    time.Unix(rapid.Int64Range(1577836800, 4102444799).Draw(t, "time"), 0).UTC(),
			TTL:     time.Duration(rapid.IntRange(1, 900).Draw(t, "ttl")) * time.Second,
			BootID:  rapid.StringMatching(`[!-~]{1,40}`).Draw(t, "boot"),
			NodeUID: "uid",
		}
		for range rapid.IntRange(0, 3).Draw(t, "tokens") {
			h.Extra = append(h.Extra, gate.Token{
				Key: rapid.StringMatching(`[a-z]{1,10}`).Draw(t, "key"), Value: rapid.StringMatching(`[!-~]{0,20}`).Draw(t, "value"),
			})
		}
		value, err := h.Format()
		if err != nil {
			t.Fatal(err)
		}
		back, err := gate.ParseHeartbeat(value)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q: -written +read:\n%s", value, diff)
		}
	})
}

func TestBypass_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := gate.Bypass{
			Until:  time.Unix(rapid.Int64Range(1577836800, 4102444799).Draw(t, "until"), 0).UTC(),
			Reason: rapid.StringMatching(`[ -~]{1,100}`).Draw(t, "reason"),
		}
		value, err := b.Format()
		if err != nil {
			t.Fatal(err)
		}
		back, err := gate.ParseBypass(value)
		if err != nil || back != b {
			t.Fatalf("%q is read as %v, error %v", value, back, err)
		}
	})
}

func TestBypass_Errors(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		bypass gate.Bypass
		want   string
	}{
		"no reason":              {gate.Bypass{Until: at}, "not of the form"},
		"a reason of two lines":  {gate.Bypass{Until: at, Reason: "a\nb"}, "not of the form"},
		"a reason beyond ASCII":  {gate.Bypass{Until: at, Reason: "größer"}, "not of the form"},
		"a reason that is long":  {gate.Bypass{Until: at, Reason: strings.Repeat("x", 600)}, "at most 512"},
		"a fraction of a second": {gate.Bypass{Until: at.Add(1), Reason: "x"}, "not in whole seconds"},
		"no time":                {gate.Bypass{Reason: "x"}, "not of the form"},
	} {
		if _, err := tc.bypass.Format(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
}

// The fuzz targets: whatever stands in an annotation or a file, reading it
// neither panics nor accepts what cannot be written again.

func FuzzParseHeartbeat(f *testing.F) {
	f.Add(validHeartbeat)
	f.Add("")
	f.Add("v=1 ready=false time=2024-02-29T23:59:59Z ttl=1s boot=a node=b =")
	f.Fuzz(func(t *testing.T, value string) {
		h, err := gate.ParseHeartbeat(value)
		if err != nil {
			return
		}
		if back, err := h.Format(); err != nil || back != value {
			t.Errorf("%q was read, and is written as %q, error %v", value, back, err)
		}
	})
}

func FuzzParseBypass(f *testing.F) {
	f.Add("until=2026-11-29T12:00:00Z reason=repair of the mesh")
	f.Add("until=2026-02-30T12:00:00Z reason=")
	f.Fuzz(func(t *testing.T, value string) {
		b, err := gate.ParseBypass(value)
		if err != nil {
			return
		}
		if back, err := b.Format(); err != nil || back != value {
			t.Errorf("%q was read, and is written as %q, error %v", value, back, err)
		}
	})
}

func FuzzParseConfiguration(f *testing.F) {
	f.Add([]byte(validConfiguration))
	f.Add([]byte("gates: [{name: a, name: b}]"))
	f.Add([]byte("---\n---\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := gate.ParseConfiguration(data)
		if err != nil {
			return
		}
		if faults := cfg.Validate(); len(faults) > 0 {
			t.Errorf("a configuration was accepted that is invalid: %v", faults)
		}
	})
}
