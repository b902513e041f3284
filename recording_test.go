//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// play runs the demo's server with a script, and returns the event lines without their
// times.
func play(t *testing.T, script string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	demoFolderIn(t, dir)
	file, events := filepath.Join(dir, "script"), filepath.Join(dir, "events")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	input := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}` + "\n" +
		`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
	for i, tool := range []string{"get_time", "read_secret", "get_time", "get_time"} {
		input += strings.Replace(toolCall(tool, "{}"), `"id":1`, fmt.Sprintf(`"id":%d`, i+1), 1) + "\n"
	}
	var errs sharedBuffer
	args = append([]string{"run", "--backend", "fake", "--events-file", file, "--serialize", "--events", events}, args...)
	if code := run(append(args, "--", os.Args[0], "demo-server"), strings.NewReader(input), io.Discard, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	var lines []string
	for _, l := range readEvents(t, events) {
		if l["type"] != "status" {
			delete(l, "ts_ns")
			lines = append(lines, fmt.Sprint(l))
		}
	}
	return strings.Join(lines, "\n")
}

// A session that has been recorded is played as it was.
func TestRecording(t *testing.T) {
	script := `[
		{"trigger":"startup","event":{"type":"a","bucket":"startup","path":"\ud800\u202e"}},
		{"trigger":"scope","event":{"type":"b"}},
		{"trigger":"begin","event":{"type":"c","argv":["x","\"\\"],"n":1.50}},
		{"trigger":"begin","tool":"get_time","nth":2,"event":{"type":"d","origin":3}},
		{"trigger":"begin","tool":"get_time","nth":3,"origin":{"tool":"read_secret","nth":1},"event":{"type":"e"}},
		{"trigger":"begin","tool":"get_time","nth":3,"origin":{"tool":"read_secret","nth":1},"event":{"type":"late","bucket":"ambient"}},
		{"trigger":"end","tool":"read_secret","event":{"type":"f"}},
		{"trigger":"after","tool":"read_secret","origin":{"tool":"read_secret","nth":1},"event":{"type":"g"}},
		{"trigger":"after","tool":"get_time","nth":1,"event":{"type":"h"}},
		{"trigger":"after","tool":"get_time","nth":9,"event":{"type":"never"}}
	]`
	record := filepath.Join(t.TempDir(), "record")
	first := play(t, script, "--record", record)
	want := strings.Join([]string{
		"bucket:startup path:\uFFFD\u202e type:a",
		"bucket:startup type:b",
		"argv:[x \"\\] bucket:call call_id:1 n:1.5 type:c",
		"bucket:ambient type:h",
		"argv:[x \"\\] bucket:call call_id:2 n:1.5 type:c",
		"bucket:call call_id:2 type:f",
		"bucket:ambient origin_call_id:2 type:g",
		"argv:[x \"\\] bucket:call call_id:3 n:1.5 type:c",
		"bucket:call call_id:3 origin:3 type:d",
		"argv:[x \"\\] bucket:call call_id:4 n:1.5 type:c",
		"bucket:call call_id:4 origin_call_id:2 type:e",
		"bucket:ambient origin_call_id:2 type:late",
	}, "]\nmap[")
	if want = "map[" + want + "]"; first != want {
		t.Errorf("the session is\n%s\nwant\n%s", first, want)
	}
	recorded, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if again := play(t, string(recorded)); again != first {
		t.Errorf("recorded as\n%s\nit is played as\n%s\nwant\n%s", recorded, again, first)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if lines := play(t, "[]", "--record", empty); lines != "" {
		t.Errorf("without a script there is\n%s", lines)
	}
	if recorded, err = os.ReadFile(empty); err != nil {
		t.Fatal(err)
	}
	if lines := play(t, string(recorded)); lines != "" {
		t.Errorf("recorded as %s it is played as\n%s", recorded, lines)
	}
}
