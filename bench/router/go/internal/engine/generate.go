package engine

import (
	"fmt"
	"net"
	"runtime"
	"time"

	"routerbench/internal/answers"
)

const (
	streamHead = "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n" +
		"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
	keptFrames = 4096
	// A prefill that never comes must not hold a decode stream for ever.
	roomWait = 60 * time.Second
)

// frames are a route's events as they stand on the wire, made once.
type frames struct {
	route  answers.Route
	first  []byte
	tokens [][]byte
	ends   [3][]byte
}

func newFrames(route answers.Route) frames {
	made := frames{route: route}
	made.ends = [3][]byte{chunk(answers.Last(route)), chunk(answers.Done), []byte("0\r\n\r\n")}
	if first := answers.First(route); first != "" {
		made.first = chunk(first)
	}
	for i := range keptFrames {
		made.tokens = append(made.tokens, chunk(answers.Token(route, i)))
	}
	return made
}

func (f *frames) token(i int) []byte {
	if i < keptFrames {
		return f.tokens[i]
	}
	return chunk(answers.Token(f.route, i))
}

func chunk(event string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event) }

func plain(conn net.Conn, status int, body string) error {
	_, err := fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"+
		"content-length: %d\r\ncontent-type: application/json\r\n\r\n%s",
		status, map[int]string{200: "OK", 404: "Not Found", 400: "Bad Request"}[status], len(body), body)
	return err
}

// generate answers a prompt. A prefill engine that is asked without a room answers it all by itself.
func (e *Engine) generate(conn net.Conn, route answers.Route, body []byte) error {
	request := readAsked(body)
	tokens := request.tokens
	if tokens == 0 {
		tokens = e.server.settings.Tokens
	}
	e.served.Add(1)
	room := e.server.rooms.enter(request.room, e.side)
	modelled := e.server.settings.PrefillRate > 0
	if e.side == Prefill {
		if modelled {
			if err := e.server.model.run(e.number, body); err != nil {
				return plain(conn, 400, fmt.Sprintf(`{"object":"error","message":%q,"code":400}`, err.Error()))
			}
			if room != nil {
				room.fill()
			}
		}
		if room != nil {
			tokens = 1 // a prefill engine answers with the first token, and is done
		}
	} else if modelled && room != nil {
		select {
		case <-room.filled:
		case <-time.After(roomWait):
			return fmt.Errorf("room %d: prefill never came", request.room)
		}
	}
	if !request.stream {
		return plain(conn, 200, answers.Whole(route, tokens))
	}
	pace := request.pace
	if e.side == Prefill {
		pace = 0
	}
	return stream(conn, &e.server.frames[route], tokens, pace)
}

// stream writes each event by itself, as an engine's server does.
func stream(conn net.Conn, f *frames, tokens int, pace float64) error {
	if _, err := conn.Write([]byte(streamHead)); err != nil {
		return err
	}
	if f.first != nil {
		if _, err := conn.Write(f.first); err != nil {
			return err
		}
	}
	begin := time.Now()
	for i := range tokens {
		if pace > 0 && i > 0 {
			// Against the begin, so that lateness does not add up.
			time.Sleep(time.Until(begin.Add(time.Duration(float64(i) / pace * 1e9))))
		}
		if _, err := conn.Write(f.token(i)); err != nil {
			return err
		}
		if pace == 0 {
			// One token for each stream in turn, as a batch makes them.
			runtime.Gosched()
		}
	}
	for _, end := range f.ends {
		if _, err := conn.Write(end); err != nil {
			return err
		}
	}
	return nil
}
