package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"routerbench/internal/answers"
)

// Shape of the trace. Bytes of text; an engine counts four of them as a token.
const (
	systemPrompts  = 24
	popularity     = 1.1 // exponent: the first system prompt is the most used by far
	shortestSystem = 1_000
	longestSystem  = 12_000
	fewestTurns    = 2
	mostTurns      = 9
	shortestAsk    = 100
	longestAsk     = 2_400
	meanThink      = 80 * time.Millisecond
)

// Prefix is what the generator saw; the mock engines know the rest.
type Prefix struct {
	Conversations int      `json:"conversations"`
	Requests      int64    `json:"requests"`
	Seconds       float64  `json:"seconds"`
	Latency       Spread   `json:"latency_ms"`
	Errors        int64    `json:"errors"`
	Examples      []string `json:"error_examples"`
}

type turn struct{ role, text string }

// prefix runs s.count conversations, s.conns at a time. Each begins with one of a few system prompts, some
// far more popular than others, and sends its whole history with every turn. The conversations are the same
// for every router (by s.seed), and their turns interleave.
func prefix(s settings) (any, error) {
	if s.count < 1 {
		return nil, fmt.Errorf("prefix: give -count N")
	}
	s.route = answers.Chat
	if s.form == "generate" {
		s.route = answers.Generate
	}
	random := rand.New(rand.NewPCG(s.seed, 0))
	systems := make([]string, systemPrompts)
	shares := make([]float64, systemPrompts)
	for i := range systems {
		systems[i] = prose(random, shortestSystem+random.IntN(longestSystem-shortestSystem))
		shares[i] = math.Pow(float64(i+1), -popularity)
	}
	var c counters
	var next atomic.Int64
	var all sync.WaitGroup
	var lock sync.Mutex
	var latencies []float64
	begin := time.Now()
	for range s.conns {
		all.Go(func() {
			e := exchange{address: s.address, buffer: readBuffer}
			defer e.drop()
			for {
				number := next.Add(1)
				if number > int64(s.count) {
					return
				}
				times := converse(s, &e, &c, number, systems, shares)
				lock.Lock()
				latencies = append(latencies, times...)
				lock.Unlock()
			}
		})
	}
	all.Wait()
	return Prefix{
		s.count, c.requests.Load(), time.Since(begin).Seconds(), spread(latencies), c.errors.Load(), c.examples,
	}, nil
}

func converse(
	s settings, e *exchange, c *counters, number int64, systems []string, shares []float64,
) (latencies []float64) {
	random := rand.New(rand.NewPCG(s.seed, uint64(number)))
	history := []turn{{"system", systems[weighted(random, shares)]}}
	for range fewestTurns + random.IntN(mostTurns-fewestTurns) {
		history = append(history, turn{"user", prose(random, shortestAsk+random.IntN(longestAsk-shortestAsk))})
		tokens := 8 + random.IntN(56)
		begin := time.Now()
		body := asJSON(s.route, history, tokens)
		err := e.whole(post(s, answers.Paths[s.route], body), []byte(answers.Whole(s.route, tokens)))
		if err != nil {
			c.failed(err)
			return latencies
		}
		c.requests.Add(1)
		latencies = append(latencies, time.Since(begin).Seconds()*1000)
		history = append(history, turn{"assistant", answers.Text(tokens)})
		time.Sleep(time.Duration(random.ExpFloat64() * float64(meanThink)))
	}
	return latencies
}

func asJSON(route answers.Route, history []turn, tokens int) string {
	var text strings.Builder
	if route == answers.Generate {
		for _, each := range history {
			fmt.Fprintf(&text, "<%s>%s", each.role, each.text)
		}
		return fmt.Sprintf(`{"text":%s,"sampling_params":{"max_new_tokens":%d},"stream":false}`,
			quoted(text.String()), tokens)
	}
	for i, each := range history {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"role":%q,"content":%s}`, each.role, quoted(each.text))
	}
	return fmt.Sprintf(`{"model":"mock","messages":[%s],"max_tokens":%d,"stream":false}`, text.String(), tokens)
}

func weighted(random *rand.Rand, shares []float64) int {
	total := 0.0
	for _, share := range shares {
		total += share
	}
	at := random.Float64() * total
	for i, share := range shares {
		if at -= share; at < 0 {
			return i
		}
	}
	return len(shares) - 1
}

// prose is text that no other call makes.
func prose(random *rand.Rand, n int) string {
	words := strings.Fields(filler)
	var text strings.Builder
	for text.Len() < n {
		text.WriteString(words[random.IntN(len(words))])
		fmt.Fprintf(&text, "%d ", random.IntN(1000))
	}
	return text.String()[:n]
}
