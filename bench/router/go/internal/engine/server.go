// Package engine is a set of mock prefill and decode engines in one process: what SGLang's HTTP server says,
// without a model behind it.
package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"routerbench/internal/answers"
	"routerbench/internal/wire"
)

// Side is the role of an engine.
type Side int

// The two sides of a pair.
const (
	Prefill Side = iota
	Decode
)

func (s Side) String() string { return [...]string{"prefill", "decode"}[s] }

func (s Side) bit() uint8 { return 1 << s }

// Settings of all engines of one process. Ports: one engine each. Tokens: length of an answer that names
// none. PrefillRate: tokens/s of a prefill engine (0: prompts take no time, and decode waits for nothing).
type Settings struct {
	Host        string
	Prefill     []int
	Decode      []int
	Tokens      int
	PrefillRate float64
	CachePages  int
}

// Server holds what the engines of one process share.
type Server struct {
	settings Settings
	started  time.Time
	rooms    rooms
	model    *prefillModel
	engines  []*Engine
	frames   [len(answers.Paths)]frames
}

// Engine is one of them.
type Engine struct {
	server  *Server
	side    Side
	number  int // among its side
	served  atomic.Int64
	broken  atomic.Int64
	aborts  atomic.Int64
	opened  atomic.Int64
	closed  atomic.Int64
	refused atomic.Int64
}

// Serve runs all engines; it returns only with an error.
func Serve(settings Settings) error {
	server := &Server{
		settings: settings,
		started:  time.Now(),
		model:    newPrefillModel(len(settings.Prefill), settings.CachePages, settings.PrefillRate),
	}
	for route := range server.frames {
		server.frames[route] = newFrames(answers.Route(route))
	}
	var listeners []net.Listener
	for side, ports := range [][]int{settings.Prefill, settings.Decode} {
		for number, port := range ports {
			engine := &Engine{server: server, side: Side(side), number: number}
			server.engines = append(server.engines, engine)
			listener, err := net.Listen("tcp", net.JoinHostPort(settings.Host, fmt.Sprint(port)))
			if err != nil {
				return err
			}
			listeners = append(listeners, listener)
		}
	}
	failed := make(chan error)
	for i, engine := range server.engines {
		go func() { failed <- engine.accept(listeners[i]) }()
	}
	return <-failed
}

func (e *Engine) accept(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		e.opened.Add(1)
		go func() {
			defer e.closed.Add(1)
			defer conn.Close()
			e.converse(conn)
		}()
	}
}

func (e *Engine) converse(conn net.Conn) {
	reader := bufio.NewReaderSize(conn, 16<<10)
	var request wire.Request
	for {
		if err := wire.ReadRequest(reader, &request); err != nil {
			if errors.Is(err, wire.ErrMalformed) {
				e.refused.Add(1)
				fmt.Fprintf(os.Stderr, "%s %d: %v\n", e.side, e.number, err)
			} else if err != io.EOF {
				e.broken.Add(1)
			}
			return
		}
		if err := e.answer(conn, &request); err != nil {
			e.broken.Add(1)
			return
		}
		if request.Close {
			return
		}
	}
}

func (e *Engine) answer(conn net.Conn, request *wire.Request) error {
	if request.Method == "POST" {
		for route, path := range answers.Paths {
			if request.Path == path {
				return e.generate(conn, answers.Route(route), request.Body)
			}
		}
	}
	switch request.Path {
	case "/abort_request":
		e.aborts.Add(1)
		return plain(conn, 200, "")
	case "/mock/stats":
		return plain(conn, 200, e.server.stats())
	case "/mock/reset":
		e.server.reset()
		return plain(conn, 200, "{}")
	}
	if page, ok := e.page(request.Path); ok {
		return plain(conn, 200, page)
	}
	return plain(conn, 404, `{"detail":"Not Found"}`)
}

// EngineCounts is what one engine has seen. Broken: connections that ended within a request or an answer.
type EngineCounts struct {
	Side    string `json:"side"`
	Served  int64  `json:"served"`
	Broken  int64  `json:"broken"`
	Refused int64  `json:"refused"`
	Aborts  int64  `json:"aborts"`
	Open    int64  `json:"open_connections"`
	Opened  int64  `json:"opened_connections"`
}

func (s *Server) stats() string {
	counts := make([]EngineCounts, len(s.engines))
	for i, e := range s.engines {
		opened := e.opened.Load()
		counts[i] = EngineCounts{
			e.side.String(), e.served.Load(), e.broken.Load(), e.refused.Load(), e.aborts.Load(),
			opened - e.closed.Load(), opened,
		}
	}
	text, err := json.Marshal(struct {
		Engines []EngineCounts `json:"engines"`
		Rooms   RoomCounts     `json:"rooms"`
		Prefix  PrefixFigures  `json:"prefix"`
	}{counts, s.rooms.counts(), s.model.snapshot()})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (s *Server) reset() {
	s.rooms.reset()
	s.model.reset()
	for _, e := range s.engines {
		for _, counter := range []*atomic.Int64{&e.served, &e.broken, &e.refused, &e.aborts} {
			counter.Store(0)
		}
	}
}
