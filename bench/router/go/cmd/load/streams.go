package main

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"

	"routerbench/internal/answers"
)

// script is what a stream must say, byte for byte, and where its events end.
type script struct {
	bytes  []byte
	first  int // length of the event before the tokens
	token  int // length of a token's event
	tokens int
}

func newScript(route answers.Route, tokens int) script {
	return script{
		[]byte(answers.Stream(route, tokens)), len(answers.First(route)), len(answers.Token(route, 0)), tokens,
	}
}

// events is how many whole tokens the first bytes of the stream hold.
func (s *script) events(position int) int {
	return max(0, min(s.tokens, (position-s.first)/s.token))
}

// stream asks once and compares the stream with the script; seen is called with the tokens that have come.
func (e *exchange) stream(request []byte, want *script, seen func(tokens int)) error {
	response, err := e.send(request)
	if err != nil {
		e.drop()
		return err
	}
	if response.Status != 200 {
		body, _ := e.conn.ReadAll(response)
		return fmt.Errorf("status %d: %.200s", response.Status, body)
	}
	position, counted := 0, 0
	err = e.conn.ReadBody(response, func(part []byte) error {
		if !bytes.HasPrefix(want.bytes[position:], part) {
			return fmt.Errorf("the stream is not the engine's from byte %d on: %.300q", position, part)
		}
		position += len(part)
		if tokens := want.events(position); tokens > counted {
			counted = tokens
			seen(tokens)
		}
		return nil
	})
	if err == nil && position != len(want.bytes) {
		err = fmt.Errorf("the stream ended after %d of %d bytes", position, len(want.bytes))
	}
	if err != nil || response.Close {
		e.drop()
	}
	return err
}

func streams(s settings) (any, error) {
	want := newScript(s.route, s.tokens)
	if _, err := newOutgoing(s, 0, true, s.tokens); err != nil {
		return nil, err
	}
	var started atomic.Int64
	return measure(s, func(conn int, c *counters, over func() bool) {
		request, _ := newOutgoing(s, conn, true, s.tokens)
		e := exchange{address: s.address, buffer: readBuffer}
		defer e.drop()
		if s.pace > 0 {
			// Spread over a second, so that the tokens of all streams do not come at once.
			time.Sleep(time.Second * time.Duration(conn) / time.Duration(s.conns))
		}
		for !over() {
			number := started.Add(1)
			if s.count > 0 && number > int64(s.count) {
				return
			}
			request.next(int(number))
			before := 0
			err := e.stream(request.bytes, &want, func(tokens int) {
				c.chunks.Add(int64(tokens - before))
				before = tokens
			})
			if err != nil {
				c.failed(err)
				time.Sleep(10 * time.Millisecond)
				continue
			}
			c.requests.Add(1)
		}
	})
}
