package main

import (
	"fmt"
	"time"
)

// TTFT is the time from sending a request to its first token, in ms, on one connection that stays open.
type TTFT struct {
	Router Spread `json:"router_ms"`
	Direct Spread `json:"direct_ms"`
	Added  Added  `json:"added_ms"`
}

// Added is the router's part: the difference of medians, and of 99th percentiles.
type Added struct {
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
}

// ttft asks router and engine in turn, so that both meet the same machine.
func ttft(s settings) (any, error) {
	if s.direct == "" || s.count < 1 {
		return nil, fmt.Errorf("ttft: give -direct HOST:PORT and -count N")
	}
	want := newScript(s.route, s.tokens)
	targets := [2]exchange{{address: s.address, buffer: readBuffer}, {address: s.direct, buffer: readBuffer}}
	var times [2][]float64
	const unmeasured = 5 // opens the connections, also those behind the router
	for n := range s.count + unmeasured {
		for i := range targets {
			request, err := newOutgoing(s, 0, true, s.tokens)
			if err != nil {
				return nil, err
			}
			request.next(n)
			var first time.Duration
			begin := time.Now()
			err = targets[i].stream(request.bytes, &want, func(int) {
				if first == 0 {
					first = time.Since(begin)
				}
			})
			if err != nil {
				return nil, err
			}
			if n >= unmeasured {
				times[i] = append(times[i], first.Seconds()*1000)
			}
			time.Sleep(time.Millisecond)
		}
	}
	router, direct := spread(times[0]), spread(times[1])
	return TTFT{router, direct, Added{router.Median - direct.Median, router.P99 - direct.P99}}, nil
}
