package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// findingSARIF writes a log of SARIF 2.1.0 (OASIS), which code hosts and editors show.
// A finding's place is the line of the event that it is of.
type findingSARIF struct {
	out     *bufio.Writer
	source  string
	results []sarifResult
	more    int // results beyond maxSARIFResults
	rules   []sarifRule
	worst   []int // severity of each rule's results
}

// maxSARIFResults is how many results a log has; code hosts take no more of a run (GitHub's
// limit). Others are counted in a notification.
const maxSARIFResults = 25_000

func newFindingSARIF(out *bufio.Writer, source string) *findingSARIF {
	if source == "-" {
		source = "events.ndjson"
	}
	return &findingSARIF{out: out, source: path.Clean(source), results: []sarifResult{}, rules: []sarifRule{}}
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifRule struct {
	ID               string         `json:"id"`
	ShortDescription sarifText      `json:"shortDescription"`
	Properties       map[string]any `json:"properties"`
}

type sarifResult struct {
	RuleID     string          `json:"ruleId"`
	RuleIndex  int             `json:"ruleIndex"`
	Level      string          `json:"level"`
	Message    sarifText       `json:"message"`
	Locations  []sarifLocation `json:"locations"`
	Properties map[string]any  `json:"properties"`
}

type sarifLocation struct {
	PhysicalLocation struct {
		ArtifactLocation struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region struct {
			StartLine int `json:"startLine"`
		} `json:"region"`
	} `json:"physicalLocation"`
	LogicalLocations []sarifLogicalLocation `json:"logicalLocations,omitempty"`
}

type sarifLogicalLocation struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// sarifLevels are by severity.
var sarifLevels = []string{"note", "warning", "error", "error"}

// sarifScores are by severity, as GitHub reads them.
var sarifScores = []string{"3.0", "5.0", "8.0", "9.5"}

func (w *findingSARIF) write(n int, line []byte, ev *policyEvent, f finding, tool []byte) error {
	severity := slices.Index(severities, f.severity)
	rule := slices.IndexFunc(w.rules, func(r sarifRule) bool { return r.ID == f.category })
	if rule < 0 {
		rule = len(w.rules)
		w.rules = append(w.rules, sarifRule{f.category, sarifText{strings.ReplaceAll(strings.TrimPrefix(f.category, "runtime."), "_", " ")},
			map[string]any{"tags": []string{"security", owaspIDs[f.category]}}})
		w.worst = append(w.worst, severity)
	}
	w.worst[rule] = max(w.worst[rule], severity)
	if len(w.results) == maxSARIFResults {
		w.more++
		return nil
	}
	r := sarifResult{
		RuleID: f.category, RuleIndex: rule, Level: sarifLevels[severity], Message: sarifText{f.detail},
		Properties: map[string]any{"severity": f.severity, "event": json.RawMessage(slices.Clone(line)), "beyondPython": f.beyond},
	}
	var at sarifLocation
	at.PhysicalLocation.ArtifactLocation.URI = sarifURI(w.source)
	at.PhysicalLocation.Region.StartLine = n
	if tool != nil {
		at.LogicalLocations = []sarifLogicalLocation{{fieldText(tool, ""), "function"}}
	}
	if ev.callID != nil {
		r.Properties["callId"] = fieldText(ev.callID, "")
	}
	r.Locations = []sarifLocation{at}
	w.results = append(w.results, r)
	return nil
}

// sarifURI writes a path as a relative reference (RFC 3986).
func sarifURI(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("/-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			b.WriteString("%" + strings.ToUpper(string([]byte{hex[c>>4], hex[c&15]})))
		}
	}
	return b.String()
}

func (w *findingSARIF) finish() error {
	type driver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version"`
		InformationURI string      `json:"informationUri,omitempty"`
		Rules          []sarifRule `json:"rules"`
	}
	type tool struct {
		Driver driver `json:"driver"`
	}
	type notification struct {
		Level   string    `json:"level"`
		Message sarifText `json:"message"`
	}
	type invocation struct {
		Successful    bool           `json:"executionSuccessful"`
		Notifications []notification `json:"toolExecutionNotifications"`
	}
	type sarifRun struct {
		Tool        tool          `json:"tool"`
		Invocations []invocation  `json:"invocations,omitempty"`
		Results     []sarifResult `json:"results"`
	}
	run := sarifRun{Tool: tool{driver{Name: "mcpfz-probe", Version: version, Rules: w.rules}}, Results: w.results}
	for i, severity := range w.worst {
		w.rules[i].Properties["security-severity"] = sarifScores[severity]
	}
	if w.more > 0 {
		text := fmt.Sprintf("%d results are left out: there are more than %d", w.more, maxSARIFResults)
		run.Invocations = []invocation{{true, []notification{{"warning", sarifText{text}}}}}
	}
	e := json.NewEncoder(w.out)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}{
		"https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json", "2.1.0",
		[]sarifRun{run},
	})
}
