package engine

import "testing"

func TestFieldsWhereverARouterPutsThem(t *testing.T) {
	for body, want := range map[string]asked{
		`{"model":"mock@50","stream":true,"max_tokens":7,"bootstrap_room":12}`:       {true, 7, 50, 12},
		`{"bootstrap_room": 9223372036854775807, "max_completion_tokens": 3}`:        {false, 3, 0, 1<<63 - 1},
		`{"text":"x","sampling_params":{"max_new_tokens":4},"stream":false}`:         {false, 4, 0, 0},
		`{"model":"mock","messages":[{"role":"user","content":"x"}],"stream": true}`: {true, 0, 0, 0},
	} {
		if got := readAsked([]byte(body)); got != want {
			t.Errorf("%s: %+v, want %+v", body, got, want)
		}
	}
}

func TestPromptIsTheSameHoweverItIsWritten(t *testing.T) {
	texts := map[string]bool{}
	for _, body := range []string{
		`{"messages":[{"role":"system","content":"a"},{"role":"user","content":"\u0062"}],"model":"m"}`,
		`{"model": "m", "x": 1, "messages": [{"content": "a", "role": "system"}, {"content": "b", "role": "user"}]}`,
	} {
		text, err := prompt([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		texts[string(text)] = true
	}
	if len(texts) != 1 {
		t.Errorf("%d texts: %v", len(texts), texts)
	}
	if _, err := prompt([]byte("{")); err == nil {
		t.Error("no JSON, and no error")
	}
}

func TestRoomsUsedTwiceOrByOneSide(t *testing.T) {
	var seen rooms
	for _, each := range []struct {
		room uint64
		side Side
	}{{1, Prefill}, {1, Decode}, {2, Prefill}, {3, Decode}, {1, Prefill}, {0, Decode}} {
		seen.enter(each.room, each.side)
	}
	if got, want := seen.counts(), (RoomCounts{Paired: 1, Lonely: 2, Twice: 1, None: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
