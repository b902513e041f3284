package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Addresses as they are sent: 1.2.3.4 and 2001::7.
const (
	dnsFour = "\x01\x02\x03\x04"
	dnsSix  = "\x20\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07"
)

// dnsBytes makes a message of a header, with the numbers of questions and answers that
// it is given, and what follows it.
func dnsBytes(flags uint16, questions, answers int, parts ...string) []byte {
	b := []byte{0xab, 0xcd}
	for _, v := range []int{int(flags), questions, answers, 0, 0} {
		b = binary.BigEndian.AppendUint16(b, uint16(v))
	}
	return append(b, strings.Join(parts, "")...)
}

// dnsName makes a name of labels as it is sent. A label "\xc0\x0c" is the pointer to 12
// and ends the name.
func dnsName(labels ...string) string {
	var b strings.Builder
	for _, l := range labels {
		if len(l) == 2 && l[0] >= 0xc0 {
			return b.String() + l
		}
		b.WriteByte(byte(len(l)))
		b.WriteString(l)
	}
	return b.String() + "\x00"
}

func dnsAsk(name string, typ uint16) string {
	return name + string([]byte{byte(typ >> 8), byte(typ), 0, 1})
}

func dnsRecord(name string, typ uint16, data string) string {
	b := []byte{byte(typ >> 8), byte(typ), 0, 1, 0, 0, 1, 0x2c, byte(len(data) >> 8), byte(len(data))}
	return name + string(b) + data
}

// dnsSummary is all that a message holds, a part a line.
func dnsSummary(m *dnsMessage) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%04x response=%v opcode=%d %s truncated=%v", m.id, m.response, m.opcode, m.rcodeName(), m.truncated)
	for i := range m.questions {
		fmt.Fprintf(&b, "\n%s %s?", m.questions[i].name, m.questions[i].typeName())
	}
	for _, a := range m.answers {
		if a.cname != nil {
			fmt.Fprintf(&b, "\n%s = %s", a.name, a.cname)
		} else {
			fmt.Fprintf(&b, "\n%s = %s", a.name, a.addr)
		}
	}
	return b.String()
}

// TestDNSCaptured decodes messages from captures of others, so that what the helpers
// here and the decoder agree on is not all there is.
func TestDNSCaptured(t *testing.T) {
	for name, tt := range map[string]struct {
		hex  string
		want string
	}{
		"query with EDNS, by dig": {
			"d76d 0120 0001 0000 0000 0001 03636f6d 00 0002 0001 00 0029 1000 00000000 0000",
			"d76d response=false opcode=0 NOERROR truncated=false\ncom NS?",
		},
		"response with an address": {
			"4b4d 8500 0001 0001 0000 0000 03777777 06676f6f676c65 03636f6d 00 001c 0001 " +
				"c00c 001c 0001 0000012c 0010 2a001450400e08090000000000002004",
			"4b4d response=true opcode=0 NOERROR truncated=false\nwww.google.com AAAA?\nwww.google.com = 2a00:1450:400e:809::2004",
		},
		"no such name": {
			"abcd 8183 0001 0000 0000 0000 03777777 076578616d706c65 03636f6d 00 0001 0001",
			"abcd response=true opcode=0 NXDOMAIN truncated=false\nwww.example.com A?",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var payload []byte
			if _, err := fmt.Sscanf(strings.ReplaceAll(tt.hex, " ", ""), "%x", &payload); err != nil {
				t.Fatal(err)
			}
			var m dnsMessage
			if err := m.decode(payload); err != nil {
				t.Fatal(err)
			}
			if got := dnsSummary(&m); got != tt.want {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestDNS(t *testing.T) {
	const query, response = 0x0100, 0x8180
	www := dnsName("www", "example", "com") // at 12, example.com at 16
	ask := dnsAsk(www, 1)                   // the answers begin at 33
	long := strings.Repeat("x", 63)
	longest := dnsName(long, long, long, long[:61])
	longestText := strings.Join([]string{long, long, long, long[:61]}, ".")
	var everyByte []string
	for i := 0; i < 256; i += 32 {
		label := make([]byte, 32)
		for j := range label {
			label[j] = byte(i + j)
		}
		everyByte = append(everyByte, string(label))
	}
	const good, more = " opcode=0 NOERROR truncated=false", " opcode=0 NOERROR truncated=true"
	for name, tt := range map[string]struct {
		in   []byte
		want string // without the id
		err  error
	}{
		"query": {dnsBytes(query, 1, 0, ask), "response=false" + good + "\nwww.example.com A?", nil},
		"case is kept": {
			dnsBytes(query, 1, 0, dnsAsk(dnsName("wWw", "X"), 28)),
			"response=false" + good + "\nwWw.X AAAA?", nil,
		},
		"root":  {dnsBytes(query, 1, 0, dnsAsk(dnsName(), 2)), "response=false" + good + "\n. NS?", nil},
		"HTTPS": {dnsBytes(query, 1, 0, dnsAsk(www, 65)), "response=false" + good + "\nwww.example.com HTTPS?", nil},
		"SRV": {
			dnsBytes(query, 1, 0, dnsAsk(dnsName("_ldap", "_tcp", "x"), 33)),
			"response=false" + good + "\n_ldap._tcp.x SRV?", nil,
		},
		"unknown type": {
			dnsBytes(query, 1, 0, dnsAsk(www, 65280)),
			"response=false" + good + "\nwww.example.com TYPE65280?", nil,
		},
		"two questions": {
			dnsBytes(query, 2, 0, ask, dnsAsk("\xc0\x0c", 28)),
			"response=false" + good + "\nwww.example.com A?\nwww.example.com AAAA?", nil,
		},
		"nothing": {dnsBytes(query, 0, 0), "response=false" + good, nil},
		"dots, backslashes and none": {
			dnsBytes(query, 1, 0, dnsAsk(dnsName("a.b", `c\`, ".", "d"), 1)),
			"response=false" + good + "\n" + `a\.b.c\\.\..d A?`, nil,
		},
		"refused":         {dnsBytes(0x8185, 1, 0, ask), "response=true opcode=0 REFUSED truncated=false\nwww.example.com A?", nil},
		"code of no name": {dnsBytes(0x818b, 0, 0), "response=true opcode=0 RCODE11 truncated=false", nil},
		"update": {
			dnsBytes(0x2800, 1, 0, dnsAsk(www, 6)),
			"response=false opcode=5 NOERROR truncated=false\nwww.example.com SOA?", nil,
		},
		"sender truncated": {dnsBytes(response|0x0200, 1, 0, ask), "response=true" + more + "\nwww.example.com A?", nil},
		"addresses": {
			dnsBytes(response, 1, 2, ask, dnsRecord("\xc0\x0c", 1, dnsFour), dnsRecord("\xc0\x0c", 28, dnsSix)),
			"response=true" + good + "\nwww.example.com A?\nwww.example.com = 1.2.3.4\nwww.example.com = 2001::7", nil,
		},
		"CNAMEs": { // the first record's name is at 45
			dnsBytes(response, 1, 3, ask,
				dnsRecord("\xc0\x0c", 5, dnsName("cdn", "\xc0\x10")),
				dnsRecord("\xc0\x2d", 5, dnsName("a", "net")),
				dnsRecord(dnsName("A", "net"), 1, dnsFour)),
			"response=true" + good + "\nwww.example.com A?\n" +
				"www.example.com = cdn.example.com\ncdn.example.com = a.net\nA.net = 1.2.3.4", nil,
		},
		"records of other types": {
			dnsBytes(response, 1, 5, ask,
				dnsRecord("\xc0\x0c", 16, "\x03abc"),
				dnsRecord("\xc0\x0c", 65, "\x00\x01\x00"),
				dnsRecord("\xc0\x0c", 33, "\x00\x00\x00\x00\x00\x50\x01a\x00"),
				dnsRecord("\xc0\x0c", 46, ""),
				dnsRecord("\xc0\x0c", 1, dnsFour)),
			"response=true" + good + "\nwww.example.com A?\nwww.example.com = 1.2.3.4", nil,
		},
		"addresses of the wrong size": {
			dnsBytes(response, 0, 3,
				dnsRecord("\x00", 1, "\x01\x02\x03"), dnsRecord("\x00", 28, dnsFour), dnsRecord("\x00", 1, dnsFour)),
			"response=true" + good + "\n. = 1.2.3.4", nil,
		},
		"mDNS": { // the class's first bit is set
			dnsBytes(0x8400, 0, 1, dnsName("printer", "local"), "\x00\x01\x80\x01\x00\x00\x00\x78\x00\x04\x0a\x00\x00\x09"),
			"response=true" + good + "\nprinter.local = 10.0.0.9", nil,
		},
		"pointer forward": { // to the name after the question
			dnsBytes(query, 1, 0, dnsAsk("\x01a\xc0\x14", 1), dnsName("b")),
			"response=false" + good + "\na.b A?", nil,
		},
		"pointer into the header": { // to the last byte of the last count
			dnsBytes(query, 1, 0, dnsAsk(dnsName("a", "\xc0\x0b"), 1)),
			"response=false" + good + "\na A?", nil,
		},
		"longest name": {
			dnsBytes(query, 1, 0, dnsAsk(longest, 1)),
			"response=false" + good + "\n" + longestText + " A?", nil,
		},
		"longest text": {
			dnsBytes(query, 1, 0, dnsAsk(strings.ReplaceAll(longest, "x", "."), 1)),
			"response=false" + good + "\n" + strings.ReplaceAll(longestText, "x", `\.`) + " A?", nil,
		},
		"as many pointers as can be": {
			dnsBytes(query, 2, 0, dnsAsk(strings.Repeat("\x01x", 127)+"\x00", 1), dnsAsk("\xc1\x15", 1),
				dnsPointers(0x115, 126)),
			"response=false" + good + strings.Repeat("\n"+strings.Repeat(".x", 127)[1:]+" A?", 2), nil,
		},
		"a pointer too many": {
			dnsBytes(query, 2, 0, ask, dnsAsk("\xc0\x27", 1), dnsPointers(0x27, 127)),
			"response=false" + more + "\nwww.example.com A?", errDNSName,
		},

		"every byte, but the name is too long": {
			dnsBytes(query, 1, 0, dnsAsk(dnsName(everyByte...), 1)), "response=false" + more, errDNSName,
		},
		"name too long by one": {
			dnsBytes(query, 1, 0, dnsAsk(dnsName(long, long, long, long[:62]), 1)),
			"response=false" + more, errDNSName,
		},
		"name too long by links": {
			dnsBytes(query, 2, 0, dnsAsk(longest, 1), dnsAsk("\x01x\xc0\x0c", 1)),
			"response=false" + more + "\n" + longestText + " A?", errDNSName,
		},
		"pointer to itself": {dnsBytes(query, 1, 0, dnsAsk("\xc0\x0c", 1)), "response=false" + more, errDNSName},
		"pointers in a circle": {
			dnsBytes(query, 1, 0, dnsAsk("\xc0\x0e\xc0\x10\xc0\x0c", 1)),
			"response=false" + more, errDNSName,
		},
		"circle with a label": {dnsBytes(query, 1, 0, dnsAsk("\x01a\xc0\x0c", 1)), "response=false" + more, errDNSName},
		"label of kind 01":    {dnsBytes(query, 1, 0, dnsAsk("\x41a\x00", 1)), "response=false" + more, errDNSName},
		"label of kind 10":    {dnsBytes(query, 1, 0, dnsAsk("\x81a\x00", 1)), "response=false" + more, errDNSName},
		"pointer out":         {dnsBytes(query, 1, 0, dnsAsk("\xc1\x00", 1)), "response=false" + more, nil},
		"fault in an answer": {
			dnsBytes(response, 1, 2, ask, dnsRecord("\xc0\x0c", 1, dnsFour), dnsRecord("\xc0\x31", 1, dnsFour)),
			"response=true" + more + "\nwww.example.com A?\nwww.example.com = 1.2.3.4", errDNSName,
		},
		"fault in a CNAME": {
			dnsBytes(response, 1, 1, ask, dnsRecord("\xc0\x0c", 5, "\xc0\x2d")),
			"response=true" + more + "\nwww.example.com A?", errDNSName,
		},
		"too many questions": {
			dnsBytes(response, 17, 1, strings.Repeat(dnsAsk("\x01a\x00", 1), 17), dnsRecord("\x00", 1, dnsFour)),
			"response=true" + more + strings.Repeat("\na A?", 16), nil,
		},
		"too many answers": {
			dnsBytes(response, 0, 129, strings.Repeat(dnsRecord("\x01a\x00", 1, dnsFour), 129)),
			"response=true" + more + strings.Repeat("\na = 1.2.3.4", 128), nil,
		},
		"counts without anything": {dnsBytes(response, 0xffff, 0xffff), "response=true" + more, nil},
		"answers without any":     {dnsBytes(response, 1, 0xffff, ask), "response=true" + more + "\nwww.example.com A?", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var m dnsMessage
			if err := m.decode(tt.in); err != tt.err {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if got := dnsSummary(&m); got != "abcd "+tt.want {
				t.Errorf("got %s\nwant abcd %s", got, tt.want)
			}
		})
	}
}

// dnsPointers makes n pointers, to be put at a place in the message: each to the one
// after it, and the last to the name at 12.
func dnsPointers(at, n int) string {
	var b []byte
	for i := 1; i < n; i++ {
		b = binary.BigEndian.AppendUint16(b, 0xc000|uint16(at+2*i))
	}
	return string(b) + "\xc0\x0c"
}

// TestDNSEveryByte has names with each byte, alone and in company.
func TestDNSEveryByte(t *testing.T) {
	var m dnsMessage
	for c := range 256 {
		one := string([]byte{byte(c)})
		text := one
		if c == '.' || c == '\\' {
			text = `\` + one
		}
		if err := m.decode(dnsBytes(0x0100, 1, 0, dnsAsk(dnsName(one, "a"+one+"b"), 1))); err != nil {
			t.Fatal(err)
		}
		if got, want := string(m.questions[0].name), text+".a"+text+"b"; got != want {
			t.Errorf("byte %#x: got %q, want %q", c, got, want)
		}
	}
}

// TestDNSCut cuts a message at every byte. What is decoded is the beginning of what the
// whole message says, and counts as truncated unless nothing is missing.
func TestDNSCut(t *testing.T) {
	whole := usualDNS()
	answered := len(whole)
	whole = append(whole, "\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00"...) // EDNS is of no interest
	parts := []string{
		"", "\nwww.example.com A?",
		"\nwww.example.com = cdn.example.com", "\ncdn.example.com = 1.2.3.4", "\ncdn.example.com = 2001::7",
	}
	ends := []int{dnsHeaderLen, 33, 33 + 12 + 6, 51 + 16, answered}
	var m dnsMessage
	for n := range len(whole) + 1 {
		err := m.decode(whole[:n:n])
		if n < dnsHeaderLen {
			if err != errDNSHeader || !m.truncated || len(m.questions)+len(m.answers) > 0 {
				t.Errorf("%d bytes: error %v, %s", n, err, dnsSummary(&m))
			}
			continue
		}
		want := fmt.Sprintf("abcd response=true opcode=0 NOERROR truncated=%v", n < answered)
		for i, end := range ends {
			if n >= end {
				want += parts[i]
			}
		}
		if got := dnsSummary(&m); err != nil || got != want {
			t.Errorf("%d bytes: error %v, got %s\nwant %s", n, err, got, want)
		}
	}
}

// TestDNSReuse decodes without making garbage, and without leaving anything of one
// message to the next.
func TestDNSReuse(t *testing.T) {
	large, small, bad := hostileDNS(), dnsBytes(0x0100, 1, 0, dnsAsk(dnsName("a"), 1)), dnsBytes(0x0100, 1, 0, "\xc0\x0c")
	var m dnsMessage
	if n := testing.AllocsPerRun(100, func() {
		m.decode(large)
		m.decode(bad)
		m.decode(small)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if got, want := dnsSummary(&m), "abcd response=false opcode=0 NOERROR truncated=false\na A?"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	m.decode(large)
	if len(m.text) > maxDNSTexts+maxDNSText || cap(m.text) > 2*maxDNSTexts || !m.truncated {
		t.Errorf("truncated=%v, %d bytes of text in %d", m.truncated, len(m.text), cap(m.text))
	}
}

// usualDNS is a response with a CNAME and its two addresses.
func usualDNS() []byte {
	return dnsBytes(0x8180, 1, 3,
		dnsAsk(dnsName("www", "example", "com"), 1),
		dnsRecord("\xc0\x0c", 5, dnsName("cdn", "\xc0\x10")),
		dnsRecord("\xc0\x2d", 1, dnsFour),
		dnsRecord("\xc0\x2d", 28, dnsSix))
}

// hostileDNS is a message of 2 kB that takes the most work: its names are as long as can
// be, most of their bytes need a backslash, and all but one have as many pointers as can be.
func hostileDNS() []byte {
	const name, questions, answers = 255 + 4, 15 * 6, 128 * 14
	const at = dnsHeaderLen + name + questions + answers
	link := string([]byte{0xc0 | at>>8, at & 0xff})
	label := strings.Repeat(".", 63)
	return dnsBytes(0x8180, 16, 128, dnsAsk(dnsName(label, label, label, label[:61]), 1),
		strings.Repeat(dnsAsk(link, 1), 15), strings.Repeat(dnsRecord(link, 5, link), 128), dnsPointers(at, 126))
}

func TestDNSOverTCP(t *testing.T) {
	query := string(dnsBytes(0x0100, 1, 0, dnsAsk(dnsName("www", "example", "com"), 1))) // 33 bytes
	answer := string(dnsBytes(0x8180, 1, 1, dnsAsk(dnsName("a"), 1), dnsRecord("\xc0\x0c", 1, dnsFour)))
	long := string(dnsBytes(0x8180, 1, 30, dnsAsk(dnsName("a"), 1), strings.Repeat(dnsRecord("\xc0\x0c", 1, dnsFour), 30)))
	for name, tt := range map[string]struct {
		stream string
		want   []string
	}{
		"nothing":            {"", nil},
		"one byte":           {"\x00", []string{""}},
		"a length alone":     {"\x00\x21", []string{""}},
		"a message":          {"\x00\x21" + query, []string{query}},
		"two messages":       {"\x00\x21" + query + "\x00\x23" + answer, []string{query, answer}},
		"one and a half":     {"\x00\x21" + query + "\x00\x23" + answer[:20], []string{query, answer[:20]}},
		"one and a bit":      {"\x00\x21" + query + "\x00", []string{query, ""}},
		"half":               {"\x00\x21" + query[:17], []string{query[:17]}},
		"empty messages":     {"\x00\x00\x00\x00\x00\x21" + query, []string{"", "", query}},
		"a long message":     {"\x01\xf3" + long, []string{long}},
		"a query alone":      {query, []string{query}},
		"a response alone":   {answer, []string{answer}},
		"a long one alone":   {long, []string{long}},
		"half of one alone":  {long[:100], []string{long[:100]}},
		"a small id":         {"\x00\x05" + query[2:], []string{"\x00\x05" + query[2:]}},
		"an odd query":       {"\x00\x21" + query[:2] + "\x00\x01" + query[4:], []string{query[:2] + "\x00\x01" + query[4:]}},
		"not of this sort":   {"GET / HTTP/1.1\r\n\r\n", []string{"T / HTTP/1.1\r\n\r\n"}},
		"a length too small": {"\x00\x03" + query, []string{query[:3], "", query[7:]}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for stream := []byte(tt.stream); len(stream) > 0; {
				message, rest := splitDNSOverTCP(stream)
				if len(rest) >= len(stream) {
					t.Fatalf("%d bytes of %d are left", len(rest), len(stream))
				}
				got, stream = append(got, string(message)), rest
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestHostNames(t *testing.T) {
	const mapped = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff" + dnsFour
	ask := dnsAsk(dnsName("WWW", "example", "com"), 1)
	answer, answer6 := dnsRecord("\xc0\x0c", 1, dnsFour), dnsRecord("\xc0\x0c", 28, dnsSix)
	a, b := dnsRecord(dnsName("a"), 1, dnsFour), dnsRecord(dnsName("b"), 1, dnsFour)
	for name, tt := range map[string]struct {
		in   []byte
		addr string
		want string
	}{
		"as it was asked":      {dnsBytes(0x8180, 1, 1, ask, answer), "1.2.3.4", "WWW.example.com"},
		"another address":      {dnsBytes(0x8180, 1, 1, ask, answer), "1.2.3.5", ""},
		"IPv6":                 {dnsBytes(0x8180, 1, 1, ask, answer6), "2001::7", "WWW.example.com"},
		"in a zone":            {dnsBytes(0x8180, 1, 1, ask, answer6), "2001::7%eth0", "WWW.example.com"},
		"mapped in the answer": {dnsBytes(0x8180, 1, 1, ask, dnsRecord("\xc0\x0c", 28, mapped)), "1.2.3.4", "WWW.example.com"},
		"mapped in the lookup": {dnsBytes(0x8180, 1, 1, ask, answer), "::ffff:1.2.3.4", "WWW.example.com"},
		"CNAME": {
			usualDNS(),
			"1.2.3.4", "www.example.com",
		},
		"of another owner":      {dnsBytes(0x8180, 1, 1, ask, b), "1.2.3.4", "WWW.example.com"},
		"mDNS":                  {dnsBytes(0x8400, 0, 1, dnsRecord(dnsName("p", "local"), 1, dnsFour)), "1.2.3.4", "p.local"},
		"two questions":         {dnsBytes(0x8180, 2, 1, ask, ask, b), "1.2.3.4", "b"},
		"the last of two":       {dnsBytes(0x8400, 0, 2, a, b), "1.2.3.4", "b"},
		"cut, with the address": {dnsBytes(0x8180, 1, 9, ask, answer), "1.2.3.4", "WWW.example.com"},
		"a query":               {dnsBytes(0x0100, 1, 1, ask, answer), "1.2.3.4", ""},
		"no such name":          {dnsBytes(0x8183, 1, 1, ask, answer), "1.2.3.4", ""},
		"response to an update": {dnsBytes(0xa800, 1, 1, ask, answer), "1.2.3.4", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var m dnsMessage
			var h hostNames
			m.decode(tt.in)
			h.learn(&m)
			m.decode(dnsBytes(0x8180, 1, 0, dnsAsk(dnsName("xxx", "xxxxxxx", "xxx"), 1))) // the cache keeps bytes of its own
			if got := h.lookup(netip.MustParseAddr(tt.addr)); string(got) != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestHostNamesBound has the cache forget the addresses whose names are the oldest.
func TestHostNamesBound(t *testing.T) {
	var m dnsMessage
	var h hostNames
	learn := func(name string, i int) {
		addr := string([]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		m.decode(dnsBytes(0x8180, 1, 1, dnsAsk(name, 1), dnsRecord("\xc0\x0c", 1, addr)))
		h.learn(&m)
	}
	want := func(name string, i int) {
		t.Helper()
		if got := h.lookup(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})); string(got) != name {
			t.Errorf("address %d has the name %q, want %q", i, got, name)
		}
	}
	for i := range maxHostNames {
		learn(dnsName("first"), i)
	}
	learn(dnsName("again"), 0) // it is now the newest
	learn(dnsName("new"), maxHostNames)
	want("again", 0)
	want("", 1)
	want("first", 2)
	want("new", maxHostNames)
	label := strings.Repeat(".", 63)
	for i := range 3 * maxHostNames {
		learn(dnsName(label, label, label, label[:61]), 1<<20+i)
	}
	want("", 0)
	want("", maxHostNames)
	if len(h.byAddr) != maxHostNames || h.byAge.Len() != maxHostNames {
		t.Errorf("%d addresses, %d names, want %d", len(h.byAddr), h.byAge.Len(), maxHostNames)
	}
	for e := h.byAge.Front(); e != nil; e = e.Next() {
		if n := cap(e.Value.(*hostName).name); n > 512 {
			t.Fatalf("a name takes %d bytes", n)
		}
	}
	i := 0
	if n := testing.AllocsPerRun(10_000, func() {
		i++
		m.answers[0].addr = netip.AddrFrom4([4]byte{12, 0, byte(i >> 8), byte(i)})
		h.learn(&m)
	}); n > 0 {
		t.Errorf("%v allocations an answer", n)
	}
}

// dnsLabels takes the text of a name apart, and fails the test if it is not as promised.
func dnsLabels(t *testing.T, text []byte) (labels [][]byte) {
	t.Helper()
	if string(text) == "." {
		return nil
	}
	label, sent := []byte{}, 1
	for i := 0; i <= len(text); i++ {
		switch {
		case i == len(text) || text[i] == '.':
			if len(label) < 1 || len(label) > 63 {
				t.Fatalf("label of %d bytes in %q", len(label), text)
			}
			labels, label, sent = append(labels, label), []byte{}, sent+1+len(label)
		case text[i] == '\\':
			i++
			if i == len(text) || text[i] != '.' && text[i] != '\\' {
				t.Fatalf("bad escape in %q", text)
			}
			fallthrough
		default:
			label = append(label, text[i])
		}
	}
	if sent > maxDNSName || len(text) > maxDNSText {
		t.Fatalf("name of %d bytes with a text of %d: %q", sent, len(text), text)
	}
	return labels
}

func FuzzDNS(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(dnsBytes(0x0100, 1, 0, dnsAsk(dnsName("www", `a.\`, "com"), 65)))
	f.Add(usualDNS())
	f.Add(dnsBytes(0x8400, 0, 1, dnsRecord(dnsName("p", "local"), 1, dnsFour)))
	f.Add(dnsBytes(0x0100, 1, 0, dnsAsk("\xc0\x0e\xc0\x10\xc0\x0c", 1)))
	f.Add(append([]byte("\x00\x21"), dnsBytes(0x0100, 1, 0, dnsAsk(dnsName("www", "example", "com"), 1))...))
	var used dnsMessage // goes from input to input
	f.Fuzz(func(t *testing.T, payload []byte) {
		before := bytes.Clone(payload)
		var m dnsMessage
		err := m.decode(payload)
		if len(m.questions) > maxDNSQuestions || len(m.answers) > maxDNSAnswers {
			t.Fatalf("%d questions, %d answers", len(m.questions), len(m.answers))
		}
		if err != nil && (!m.truncated || err != errDNSHeader && err != errDNSName) {
			t.Errorf("truncated=%v with the error %v", m.truncated, err)
		}
		for _, q := range m.questions {
			dnsLabels(t, q.name)
			if q.typeName() == "" {
				t.Error("no name for a type")
			}
		}
		for _, a := range m.answers {
			dnsLabels(t, a.name)
			if a.addr.IsValid() == (a.cname != nil) {
				t.Errorf("answer with %s and %q", a.addr, a.cname)
			}
			if a.cname != nil {
				dnsLabels(t, a.cname)
			}
		}
		if again := used.decode(payload); again != err || dnsSummary(&used) != dnsSummary(&m) {
			t.Errorf("decoded once: %v, %s\nand again: %v, %s", err, dnsSummary(&m), again, dnsSummary(&used))
		}

		var h hostNames
		h.learn(&m)
		if n := h.byAge.Len(); n > len(m.answers) || n != len(h.byAddr) || n > 0 && !m.response {
			t.Errorf("%d names for %d addresses of %d answers", n, len(h.byAddr), len(m.answers))
		}
		for _, a := range m.answers {
			if known := m.response && m.opcode == 0 && m.rcode == 0 && a.addr.IsValid(); (h.lookup(a.addr) != nil) != known {
				t.Errorf("%s has the name %q", a.addr, h.lookup(a.addr))
			}
		}

		// A cut message says the beginning of what the whole one says.
		used.decode(payload[:len(payload)/2])
		if len(used.questions) > len(m.questions) || len(used.answers) > len(m.answers) {
			t.Fatalf("half of it says more: %s\nand all of it %s", dnsSummary(&used), dnsSummary(&m))
		}
		for i, q := range used.questions {
			if q.typ != m.questions[i].typ || !bytes.Equal(q.name, m.questions[i].name) {
				t.Errorf("half of it asks for %q", q.name)
			}
		}
		for i, a := range used.answers {
			b := m.answers[i]
			if a.addr != b.addr || !bytes.Equal(a.name, b.name) || !bytes.Equal(a.cname, b.cname) {
				t.Errorf("half of it answers for %q", a.name)
			}
		}

		for stream := payload; len(stream) > 0; {
			message, rest := splitDNSOverTCP(stream)
			if len(rest) >= len(stream) || len(message)+len(rest) > len(stream) || !bytes.HasSuffix(stream, rest) {
				t.Fatalf("%d bytes are cut into %d and %d", len(stream), len(message), len(rest))
			}
			used.decode(message)
			stream = rest
		}
		if !bytes.Equal(before, payload) {
			t.Error("the payload is changed")
		}
	})
}

// BenchmarkDNS decodes a response and learns from it: a usual one, and the one that
// takes the most work.
func BenchmarkDNS(b *testing.B) {
	for _, bm := range []struct {
		name    string
		payload []byte
	}{
		{"usual", usualDNS()},
		{"hostile", hostileDNS()},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var m dnsMessage
			var h hostNames
			b.ReportAllocs()
			for b.Loop() {
				m.decode(bm.payload)
				h.learn(&m)
			}
		})
	}
}
