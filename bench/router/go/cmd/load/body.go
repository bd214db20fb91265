package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"routerbench/internal/answers"
)

const filler = "the lazy dog sleeps while one quick brown fox after the other jumps over it and "

// outgoing is one connection's request, written anew for each use only where it must differ.
type outgoing struct {
	bytes  []byte
	serial []byte // digits within bytes
}

// newOutgoing makes a request whose body is exactly s.body bytes long: a system prompt shared with others,
// and a question that is no other request's.
func newOutgoing(s settings, conn int, stream bool, tokens int) (*outgoing, error) {
	const serial = "000000000000"
	system := fill(min(s.body/4, 2048), conn%8)
	body := func(padding string) string {
		user, model := serial+" "+padding, "mock"
		if s.pace > 0 {
			model = fmt.Sprintf("mock@%g", s.pace) // a mock engine makes so many tokens a second
		}
		switch s.route {
		case answers.Chat:
			return fmt.Sprintf(`{"model":%q,"messages":[{"role":"system","content":%q},{"role":"user",`+
				`"content":%q}],"temperature":0.7,"max_tokens":%d,"stream":%t}`,
				model, system, user, tokens, stream)
		case answers.Completions:
			return fmt.Sprintf(`{"model":%q,"prompt":%q,"temperature":0.7,"max_tokens":%d,"stream":%t}`,
				model, system+user, tokens, stream)
		default:
			return fmt.Sprintf(`{"text":%q,"sampling_params":{"temperature":0.7,"max_new_tokens":%d},`+
				`"stream":%t}`, system+user, tokens, stream)
		}
	}
	left := s.body - len(body(""))
	if left < 0 {
		return nil, fmt.Errorf("-body = %d: give at least %d", s.body, s.body-left)
	}
	request := &outgoing{bytes: post(s, answers.Paths[s.route], body(fill(left, conn)))}
	at := strings.Index(string(request.bytes), serial)
	request.serial = request.bytes[at : at+len(serial)]
	request.next(conn)
	return request, nil
}

// next makes the request another one: n is to be one that no request had.
func (o *outgoing) next(n int) {
	for i := len(o.serial) - 1; i >= 0; i-- {
		o.serial[i] = byte('0' + n%10)
		n /= 10
	}
}

func post(s settings, path, body string) []byte {
	key := ""
	if s.key != "" {
		key = "authorization: Bearer " + s.key + "\r\n"
	}
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nhost: %s\r\n%scontent-type: application/json\r\n"+
		"accept: */*\r\nuser-agent: routerbench\r\ncontent-length: %d\r\n\r\n%s",
		path, s.address, key, len(body), body)
}

func fill(n, turn int) string {
	text := strings.Repeat(filler, n/len(filler)+2)
	return text[turn%len(filler):][:n]
}

func quoted(text string) string {
	made, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(made)
}
