// Package answers is what the mock engines answer, byte for byte, so that the generator can check that a
// router passed on every byte: both sides make it from the same few functions.
package answers

import (
	"fmt"
	"strings"
)

// Route is a prompt route of an engine.
type Route int

// The prompt routes.
const (
	Chat Route = iota
	Completions
	Generate
)

// Paths of the routes.
var Paths = [...]string{"/v1/chat/completions", "/v1/completions", "/generate"}

// MaxTokens is the longest answer.
const MaxTokens = 100_000

// Done ends a stream.
const Done = "data: [DONE]\n\n"

const id = `"id":"0123456789abcdef0123456789abcdef"`

// First is the event before the first token (empty where the route has none).
func First(route Route) string {
	if route != Chat {
		return ""
	}
	return "data: {" + id + `,"object":"chat.completion.chunk","created":1790000000,"model":"mock",` +
		`"choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null,` +
		`"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}` + "\n\n"
}

// Token is the event of the token number i. All are equally long.
func Token(route Route, i int) string {
	text := fmt.Sprintf(" t%05d", i%MaxTokens)
	switch route {
	case Chat:
		return "data: {" + id + `,"object":"chat.completion.chunk","created":1790000000,"model":"mock",` +
			`"choices":[{"index":0,"delta":{"role":null,"content":"` + text + `","reasoning_content":null,` +
			`"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}` +
			"\n\n"
	case Completions:
		return "data: {" + id + `,"object":"text_completion","created":1790000000,"choices":[{"index":0,` +
			`"text":"` + text + `","logprobs":null,"finish_reason":null,"matched_stop":null}],` +
			`"model":"mock","usage":null}` + "\n\n"
	default:
		return `data: {"text":"` + text + `","output_ids":[1],"meta_info":{` + id +
			`,"finish_reason":null,"prompt_tokens":1,"weight_version":"default","completion_tokens":1,` +
			`"cached_tokens":0}}` + "\n\n"
	}
}

// Last is the event that gives the reason of the end.
func Last(route Route) string {
	switch route {
	case Chat:
		return "data: {" + id + `,"object":"chat.completion.chunk","created":1790000000,"model":"mock",` +
			`"choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,` +
			`"tool_calls":null},"logprobs":null,"finish_reason":"stop","matched_stop":null}],"usage":null}` +
			"\n\n"
	case Completions:
		return "data: {" + id + `,"object":"text_completion","created":1790000000,"choices":[{"index":0,` +
			`"text":"","logprobs":null,"finish_reason":"stop","matched_stop":null}],"model":"mock",` +
			`"usage":null}` + "\n\n"
	default:
		return `data: {"text":"","output_ids":[],"meta_info":{` + id + `,"finish_reason":{"type":"stop"},` +
			`"prompt_tokens":1,"weight_version":"default","completion_tokens":1,"cached_tokens":0}}` + "\n\n"
	}
}

// Text is what the answer of n tokens says.
func Text(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, " t%05d", i%MaxTokens)
	}
	return text.String()
}

// Whole is the answer that is not streamed.
func Whole(route Route, n int) string {
	usage := fmt.Sprintf(`{"prompt_tokens":1,"total_tokens":%d,"completion_tokens":%d,`+
		`"prompt_tokens_details":null,"reasoning_tokens":0}`, n+1, n)
	switch route {
	case Chat:
		return "{" + id + `,"object":"chat.completion","created":1790000000,"model":"mock","choices":[{` +
			`"index":0,"message":{"role":"assistant","content":"` + Text(n) + `","reasoning_content":null,` +
			`"tool_calls":null},"logprobs":null,"finish_reason":"stop","matched_stop":null}],"usage":` +
			usage + `,"metadata":{"weight_version":"default"}}`
	case Completions:
		return "{" + id + `,"object":"text_completion","created":1790000000,"model":"mock","choices":[{` +
			`"index":0,"text":"` + Text(n) + `","logprobs":null,"finish_reason":"stop","matched_stop":null}],` +
			`"usage":` + usage + `,"metadata":{"weight_version":"default"}}`
	default:
		return `{"text":"` + Text(n) + `","output_ids":[1],"meta_info":{` + id +
			`,"finish_reason":{"type":"stop","matched":1},"prompt_tokens":1,"weight_version":"default",` +
			fmt.Sprintf(`"completion_tokens":%d,"cached_tokens":0,"e2e_latency":0.1}}`, n)
	}
}

// Stream is the whole stream of n tokens, without HTTP's framing.
func Stream(route Route, n int) string {
	var all strings.Builder
	all.WriteString(First(route))
	for i := range n {
		all.WriteString(Token(route, i))
	}
	all.WriteString(Last(route))
	all.WriteString(Done)
	return all.String()
}
