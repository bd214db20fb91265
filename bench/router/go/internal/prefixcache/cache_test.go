package prefixcache

import (
	"bytes"
	"testing"
)

func prompt(pages int, fill byte) []byte { return bytes.Repeat([]byte{fill}, pages*pageBytes) }

func TestOnlyWholeSharedPagesMatch(t *testing.T) {
	cache := New(100)
	cache.Insert(Keys(append(prompt(3, 'a'), "more"...)))
	for name, want := range map[string]struct {
		prompt []byte
		pages  int
	}{
		"longer":              {append(prompt(3, 'a'), prompt(2, 'b')...), 3},
		"shorter":             {prompt(2, 'a'), 2},
		"other first page":    {append(prompt(1, 'x'), prompt(2, 'a')...), 0},
		"part of a page only": {prompt(1, 'a')[:pageBytes-1], 0},
	} {
		if got := cache.Match(Keys(want.prompt)); got != want.pages {
			t.Errorf("%s: %d pages match, want %d", name, got, want.pages)
		}
	}
}

func TestLeafGoesBeforeItsPrefix(t *testing.T) {
	cache := New(4)
	shared := prompt(2, 's')
	first := Keys(append(bytes.Clone(shared), prompt(1, '1')...))
	second := Keys(append(bytes.Clone(shared), prompt(2, '2')...))
	cache.Insert(first)
	cache.Insert(second)
	if cache.Pages() != 4 || cache.Match(first) != 2 || cache.Match(second) != 4 {
		t.Errorf("%d pages, first %d, second %d", cache.Pages(), cache.Match(first), cache.Match(second))
	}
}
