package main

import (
	"math/rand/v2"
	"time"

	"routerbench/internal/answers"
)

const (
	shortest      = 10
	progressEvery = 5 * time.Second
)

// soak keeps s.conns streams open, of lengths between a few tokens and s.tokens, until the window is over.
// Each few seconds it says on a line of its own how far it is.
func soak(s settings) (any, error) {
	longest := newScript(s.route, s.tokens)
	tail := len(answers.Last(s.route)) + len(answers.Done)
	s.warm = 0
	if _, err := newOutgoing(s, 0, true, s.tokens); err != nil {
		return nil, err
	}
	return measure(s, func(conn int, c *counters, over func() bool) {
		random := rand.New(rand.NewPCG(s.seed, uint64(conn)))
		e := exchange{address: s.address, buffer: 4 << 10}
		defer e.drop()
		time.Sleep(time.Second * time.Duration(conn) / time.Duration(s.conns))
		if conn == 0 {
			go progress(c, over)
		}
		for serial := conn; !over(); serial += s.conns {
			tokens := shortest + random.IntN(max(1, s.tokens-shortest))
			request, _ := newOutgoing(s, conn, true, tokens)
			request.next(serial)
			// A shorter stream is the longest one's begin, then the end that all have.
			want := script{first: longest.first, token: longest.token, tokens: tokens}
			want.bytes = append(want.bytes, longest.bytes[:longest.first+tokens*longest.token]...)
			want.bytes = append(want.bytes, longest.bytes[len(longest.bytes)-tail:]...)
			before := 0
			err := e.stream(request.bytes, &want, func(seen int) {
				c.chunks.Add(int64(seen - before))
				before = seen
			})
			if err != nil {
				c.failed(err)
				time.Sleep(100 * time.Millisecond)
				continue
			}
			c.requests.Add(1)
		}
	})
}

func progress(c *counters, over func() bool) {
	for !over() {
		time.Sleep(progressEvery)
		emit(map[string]int64{
			"requests": c.requests.Load(), "chunks": c.chunks.Load(), "errors": c.errors.Load(),
		})
	}
}
