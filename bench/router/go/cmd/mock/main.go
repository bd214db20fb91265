// Command mock runs mock prefill and decode engines until it is told to end.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"routerbench/internal/engine"
)

func main() {
	var settings engine.Settings
	prefill := flag.String("prefill", "", "ports of prefill engines, with commas between")
	decode := flag.String("decode", "", "ports of decode engines, with commas between")
	flag.StringVar(&settings.Host, "host", "127.0.0.1", "address to listen on")
	flag.IntVar(&settings.Tokens, "tokens", 16, "tokens of an answer to a request that names no number")
	flag.Float64Var(&settings.PrefillRate, "prefill-rate", 0,
		"tokens/s that a prefill engine computes; 0: prompts take no time, and no cache is kept")
	flag.IntVar(&settings.CachePages, "cache-pages", 1024, "pages of 64 tokens that a prefill engine caches")
	flag.Parse()
	settings.Prefill, settings.Decode = ports("prefill", *prefill), ports("decode", *decode)
	if err := engine.Serve(settings); err != nil {
		fail(err)
	}
}

func ports(name, text string) []int {
	var found []int
	for _, part := range strings.Split(text, ",") {
		port, err := strconv.Atoi(part)
		if err != nil || port < 1 || port > 65535 {
			fail(fmt.Errorf("-%s = %q: give ports between 1 and 65535, with commas between", name, text))
		}
		found = append(found, port)
	}
	return found
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mock:", err)
	os.Exit(1)
}
