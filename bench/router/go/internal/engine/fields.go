package engine

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// asked is what a mock takes from a body. Looked for by text, without parsing: a body may have 200 KB, and
// the generator puts nothing into prompts that looks like a field.
type asked struct {
	stream bool
	tokens int     // 0: the mock's default
	pace   float64 // tokens/s; 0: as fast as it goes
	room   uint64  // 0: none
}

func readAsked(body []byte) asked {
	var found asked
	found.stream = bytes.HasPrefix(value(body, `"stream":`), []byte("true"))
	for _, name := range []string{`"max_tokens":`, `"max_completion_tokens":`, `"max_new_tokens":`} {
		if n := number(value(body, name)); n > 0 {
			found.tokens = int(n)
			break
		}
	}
	found.room = number(value(body, `"bootstrap_room":`))
	// The model's name is the one field that every router passes on for every route of OpenAI's.
	if text, ok := bytes.CutPrefix(value(body, `"model":`), []byte(`"mock@`)); ok {
		if end := bytes.IndexByte(text, '"'); end > 0 {
			found.pace, _ = strconv.ParseFloat(string(text[:end]), 64)
		}
	}
	return found
}

func value(body []byte, name string) []byte {
	at := bytes.Index(body, []byte(name))
	if at < 0 {
		return nil
	}
	return bytes.TrimLeft(body[at+len(name):], " ")
}

func number(text []byte) uint64 {
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	n, err := strconv.ParseUint(string(text[:end]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// prompt is the text that the engine would tokenize, the same however a router has written the JSON anew.
func prompt(body []byte) ([]byte, error) {
	var fields struct {
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
		Prompt string `json:"prompt"`
		Text   string `json:"text"`
	}
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	text := []byte(fields.Prompt + fields.Text)
	for _, message := range fields.Messages {
		text = append(text, '<')
		text = append(text, message.Role...)
		text = append(text, '>')
		text = append(text, message.Content...)
	}
	return text, nil
}
