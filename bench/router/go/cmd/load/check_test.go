package main

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"routerbench/internal/answers"
	"routerbench/internal/wire"
)

// serve answers every request with the same bytes.
func serve(t *testing.T, answer string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				from := bufio.NewReader(conn)
				for wire.ReadRequest(from, new(wire.Request)) == nil {
					_, _ = fmt.Fprint(conn, answer)
					if !strings.Contains(answer, "\r\n0\r\n") && strings.Contains(answer, "chunked") {
						return // a stream that is cut off
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func plainly(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s", status, len(body), body)
}

func chunked(body, end string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n%s", len(body), body, end)
}

func TestWholeAnswersAreHeldAgainstTheEngines(t *testing.T) {
	want := answers.Whole(answers.Chat, 3)
	for name, each := range map[string]struct {
		answer string
		good   bool
	}{
		"as it is":       {plainly(200, want), true},
		"one other byte": {plainly(200, strings.Replace(want, "t00001", "t00007", 1)), false},
		"shorter":        {plainly(200, want[:len(want)-1]), false},
		"refused":        {plainly(429, want), false},
	} {
		e := exchange{address: serve(t, each.answer), buffer: readBuffer}
		request := post(settings{address: "x"}, "/generate", "{}")
		for range 2 {
			if err := e.whole(request, []byte(want)); (err == nil) != each.good {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestStreamsAreHeldAgainstTheEngines(t *testing.T) {
	const tokens = 4
	want := newScript(answers.Chat, tokens)
	text := string(want.bytes)
	for name, each := range map[string]struct {
		answer string
		good   bool
		seen   int
	}{
		"as it is":        {chunked(text, "0\r\n\r\n"), true, tokens},
		"one other byte":  {chunked(strings.Replace(text, "t00003", "t00004", 1), "0\r\n\r\n"), false, 0},
		"without [DONE]":  {chunked(strings.TrimSuffix(text, answers.Done), "0\r\n\r\n"), false, tokens},
		"too much":        {chunked(text+answers.Done, "0\r\n\r\n"), false, 0},
		"never completed": {chunked(text, ""), false, tokens},
	} {
		e := exchange{address: serve(t, each.answer), buffer: readBuffer}
		seen := 0
		err := e.stream(post(settings{address: "x"}, "/generate", "{}"), &want, func(n int) { seen = n })
		if (err == nil) != each.good || seen != each.seen {
			t.Errorf("%s: %d tokens, %v", name, seen, err)
		}
	}
}

func TestBodiesAreAsLargeAsAsked(t *testing.T) {
	for _, route := range []answers.Route{answers.Chat, answers.Completions, answers.Generate} {
		for _, size := range []int{1024, 200 * 1024} {
			request, err := newOutgoing(settings{body: size, route: route, pace: 50}, 3, true, 16)
			if err != nil {
				t.Fatal(err)
			}
			request.next(421)
			_, body, _ := strings.Cut(string(request.bytes), "\r\n\r\n")
			if len(body) != size || !strings.Contains(body, "000000000421") {
				t.Errorf("route %d: %d bytes: %.80s", route, len(body), body)
			}
		}
	}
	if _, err := newOutgoing(settings{body: 10}, 0, true, 16); err == nil {
		t.Error("a body of 10 bytes, and no error")
	}
}
