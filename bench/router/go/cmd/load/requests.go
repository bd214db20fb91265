package main

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"routerbench/internal/answers"
	"routerbench/internal/wire"
)

const readBuffer = 64 << 10

// exchange is a connection that is opened anew after an error.
type exchange struct {
	address string
	buffer  int
	conn    *wire.Conn
}

// send writes a request, and reads the head of its answer.
func (e *exchange) send(request []byte) (wire.Response, error) {
	if e.conn == nil {
		conn, err := wire.Dial(e.address, e.buffer)
		if err != nil {
			return wire.Response{}, err
		}
		e.conn = conn
	}
	if _, err := e.conn.Write(request); err != nil {
		return wire.Response{}, err
	}
	return e.conn.ReadResponse()
}

func (e *exchange) drop() {
	if e.conn != nil {
		_ = e.conn.Close()
		e.conn = nil
	}
}

// whole asks once and compares the answer with what the mock engine said.
func (e *exchange) whole(request []byte, want []byte) error {
	response, err := e.send(request)
	if err != nil {
		e.drop()
		return err
	}
	body, err := e.conn.ReadAll(response)
	switch {
	case err != nil:
		e.drop()
		return err
	case response.Status != 200:
		return fmt.Errorf("status %d: %.200s", response.Status, body)
	case !bytes.Equal(body, want):
		return fmt.Errorf("the answer is not the engine's: %d bytes, want %d: %.200s", len(body), len(want), body)
	}
	if response.Close {
		e.drop()
	}
	return nil
}

func requests(s settings) (any, error) {
	want := []byte(answers.Whole(s.route, s.tokens))
	latencies := make([][]float64, s.conns)
	if _, err := newOutgoing(s, 0, false, s.tokens); err != nil {
		return nil, err
	}
	window, err := measure(s, func(conn int, c *counters, over func() bool) {
		request, _ := newOutgoing(s, conn, false, s.tokens)
		e := exchange{address: s.address, buffer: readBuffer}
		defer e.drop()
		for serial := conn; !over(); serial += s.conns {
			request.next(serial)
			begin := time.Now()
			if err := e.whole(request.bytes, want); err != nil {
				c.failed(err)
				time.Sleep(10 * time.Millisecond)
				continue
			}
			latencies[conn] = append(latencies[conn], time.Since(begin).Seconds()*1000)
			c.requests.Add(1)
		}
	})
	return struct {
		Window
		Latency Spread `json:"latency_ms"`
	}{window, spread(slices.Concat(latencies...))}, err
}

// Spread is how values lie.
type Spread struct {
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
	Count  int     `json:"count"`
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	slices.Sort(values)
	at := func(share float64) float64 { return values[min(len(values)-1, int(share*float64(len(values))))] }
	return Spread{at(0.5), at(0.99), values[len(values)-1], len(values)}
}
