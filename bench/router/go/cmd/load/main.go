// Command load drives a router, or an engine directly, checks every answer, and prints figures as one JSON
// object on its last line of output.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"routerbench/internal/answers"
)

// settings are the flags that all kinds of load share.
type settings struct {
	address string
	key     string
	route   answers.Route
	body    int
	conns   int
	tokens  int
	pace    float64
	warm    time.Duration
	window  time.Duration
	pids    []int
	direct  string
	count   int
	form    string
	seed    uint64
}

const usage = `load KIND [flags]
  requests  answers that are not streamed, each connection one after the other
  streams   streamed answers, likewise; -pace 0: as fast as they come
  ttft      time to the first token of streams on one kept connection, beside the same on -direct
  soak      streams of mixed lengths for a long time
  prefix    conversations on shared system prompts
`

func main() {
	kinds := map[string]func(settings) (any, error){
		"requests": requests, "streams": streams, "ttft": ttft, "soak": soak, "prefix": prefix,
	}
	if len(os.Args) < 2 || kinds[os.Args[1]] == nil {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	figures, err := kinds[os.Args[1]](parse(os.Args[1], os.Args[2:]))
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	emit(figures)
}

func emit(value any) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

func parse(kind string, arguments []string) settings {
	var s settings
	flags := flag.NewFlagSet(kind, flag.ExitOnError)
	flags.StringVar(&s.address, "address", "127.0.0.1:8000", "HOST:PORT of the router")
	flags.StringVar(&s.direct, "direct", "", "HOST:PORT of a decode engine to compare with (ttft)")
	flags.StringVar(&s.key, "key", "", "API key")
	route := flags.String("route", "chat", "chat, completions or generate")
	flags.IntVar(&s.body, "body", 1024, "bytes of a request")
	flags.IntVar(&s.conns, "conns", 32, "connections")
	flags.IntVar(&s.tokens, "tokens", 16, "tokens of an answer")
	flags.Float64Var(&s.pace, "pace", 0, "tokens/s of a stream (not for generate); 0: as fast as it goes")
	flags.DurationVar(&s.warm, "warm", 500*time.Millisecond, "time before the window that is counted")
	flags.DurationVar(&s.window, "window", 4*time.Second, "time that is counted")
	flags.IntVar(&s.count, "count", 0, "streams (ttft, streams) or conversations (prefix) in all")
	flags.StringVar(&s.form, "form", "chat", "chat or generate: how conversations are asked (prefix)")
	flags.Uint64Var(&s.seed, "seed", 1, "of the conversations (prefix) and lengths (soak)")
	pids := flags.String("pids", "", "processes of the router, with commas between: their CPU is counted")
	_ = flags.Parse(arguments)
	index := map[string]answers.Route{
		"chat": answers.Chat, "completions": answers.Completions, "generate": answers.Generate,
	}
	found, ok := index[*route]
	if !ok {
		refuse("route", *route, "chat, completions or generate")
	}
	s.route = found
	if s.tokens < 1 || s.tokens > answers.MaxTokens {
		refuse("tokens", s.tokens, fmt.Sprintf("a number between 1 and %d", answers.MaxTokens))
	}
	if s.form != "chat" && s.form != "generate" {
		refuse("form", s.form, "chat or generate")
	}
	if s.conns < 1 {
		refuse("conns", s.conns, "at least 1")
	}
	for _, text := range strings.FieldsFunc(*pids, func(r rune) bool { return r == ',' }) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			refuse("pids", text, "process ids with commas between")
		}
		s.pids = append(s.pids, pid)
	}
	return s
}

func refuse(name string, value any, fix string) {
	fmt.Fprintf(os.Stderr, "load: -%s = %v: give %s\n", name, value, fix)
	os.Exit(2)
}
