package main

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"routerbench/internal/procfs"
)

// counters are what the connections have done so far.
type counters struct {
	requests atomic.Int64
	chunks   atomic.Int64
	errors   atomic.Int64
	lock     sync.Mutex
	examples []string
}

// failed counts an error and keeps the first few.
func (c *counters) failed(err error) {
	c.errors.Add(1)
	c.lock.Lock()
	defer c.lock.Unlock()
	if len(c.examples) < 5 {
		c.examples = append(c.examples, err.Error())
	}
}

// Window is what happened in the time that is counted. CPU of the router's processes, in seconds, is read
// at the same two moments as the counters.
type Window struct {
	Seconds  float64  `json:"seconds"`
	Requests int64    `json:"requests"`
	Chunks   int64    `json:"chunks"`
	CPU      float64  `json:"cpu_s"`
	Errors   int64    `json:"errors"`
	Examples []string `json:"error_examples"`
	// Of the whole run.
	AllRequests int64 `json:"all_requests"`
	AllChunks   int64 `json:"all_chunks"`
}

// measure runs one goroutine for each connection and counts what they do in the window. work is to return
// when over says so, at the end of an answer.
func measure(s settings, work func(conn int, c *counters, over func() bool)) (Window, error) {
	var c counters
	var all sync.WaitGroup
	var over atomic.Bool
	for conn := range s.conns {
		all.Go(func() { work(conn, &c, over.Load) })
	}
	finished := make(chan struct{})
	go func() { all.Wait(); close(finished) }()
	wait(finished, s.warm)
	begin := time.Now()
	cpu, err := procfs.CPU(s.pids)
	requests, chunks := c.requests.Load(), c.chunks.Load()
	if err != nil {
		return Window{}, err
	}
	wait(finished, s.window)
	after, err := procfs.CPU(s.pids)
	window := Window{
		Seconds:  time.Since(begin).Seconds(),
		Requests: c.requests.Load() - requests,
		Chunks:   c.chunks.Load() - chunks,
		CPU:      after - cpu,
	}
	if err != nil {
		return window, err
	}
	over.Store(true)
	if !wait(finished, 60*time.Second) {
		return window, fmt.Errorf("answers are still not complete 60 s after the window")
	}
	window.Errors, window.Examples = c.errors.Load(), c.examples
	window.AllRequests, window.AllChunks = c.requests.Load(), c.chunks.Load()
	for _, text := range c.examples {
		fmt.Fprintln(os.Stderr, "load:", text)
	}
	return window, nil
}

// wait is over when finished is, or after so long; it says whether finished was.
func wait(finished <-chan struct{}, most time.Duration) bool {
	select {
	case <-finished:
		return true
	case <-time.After(most):
		return false
	}
}
