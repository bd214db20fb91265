package wire

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

func reader(text string) *bufio.Reader { return bufio.NewReaderSize(strings.NewReader(text), 64) }

func TestRequestsOfOneConnection(t *testing.T) {
	from := reader("POST /generate?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" +
		"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\nConnection: close\r\n\r\n" +
		"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")
	var request Request
	for _, want := range []Request{
		{"POST", "/generate", []byte("hello"), false},
		{"POST", "/v1/completions", []byte("abcde"), true},
	} {
		if err := ReadRequest(from, &request); err != nil {
			t.Fatal(err)
		}
		if request.Path != want.Path || string(request.Body) != string(want.Body) || request.Close != want.Close {
			t.Errorf("read %+v, want %+v", request, want)
		}
	}
	if err := ReadRequest(from, &request); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestWhatIsNoRequest(t *testing.T) {
	for _, text := range []string{
		"PRI\r\n\r\n",
		"POST / HTTP/1.1\r\nno colon\r\n\r\n",
		"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
		"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
	} {
		if err := ReadRequest(reader(text), new(Request)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestRequestCutOff(t *testing.T) {
	for _, text := range []string{
		"POST / HT", "POST / HTTP/1.1\r\nhost: a\r\n", "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhel",
	} {
		if err := ReadRequest(reader(text), new(Request)); err != io.ErrUnexpectedEOF {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestResponseLargerThanTheBuffer(t *testing.T) {
	near, far := net.Pipe()
	body := strings.Repeat("0123456789", 100)
	go func() {
		_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3e8\r\n"+body+"\r\n0\r\n\r\n"+
			"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\nno")
	}()
	conn := Conn{Conn: near, Reader: bufio.NewReaderSize(near, 64)}
	for _, want := range []struct {
		status int
		body   string
	}{{200, body}, {429, "no"}} {
		response, err := conn.ReadResponse()
		if err != nil {
			t.Fatal(err)
		}
		got, err := conn.ReadAll(response)
		if err != nil || response.Status != want.status || string(got) != want.body {
			t.Errorf("status %d, %d bytes, %v", response.Status, len(got), err)
		}
	}
}
