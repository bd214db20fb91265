// Package prefixcache models the radix cache of one prefill engine: whole pages of prompts, in a tree,
// bounded, least recently used first out.
package prefixcache

import (
	"container/list"
	"hash/maphash"
)

// PageTokens is the size of a page; BytesPerToken is how text is counted in tokens.
const (
	PageTokens    = 64
	BytesPerToken = 4
	pageBytes     = PageTokens * BytesPerToken
)

var seed = maphash.MakeSeed()

// Cache holds pages by the hash of the whole prompt up to their end. Not safe for concurrent use.
type Cache struct {
	capacity int
	pages    map[uint64]*list.Element
	recent   *list.List // of uint64, least recently used last
}

// New makes a cache of so many pages.
func New(capacity int) *Cache {
	return &Cache{capacity: capacity, pages: map[uint64]*list.Element{}, recent: list.New()}
}

// Keys are the pages of a prompt, in order; a last page that is not full has none.
func Keys(prompt []byte) []uint64 {
	keys := make([]uint64, 0, len(prompt)/pageBytes)
	var hash maphash.Hash
	hash.SetSeed(seed)
	for end := pageBytes; end <= len(prompt); end += pageBytes {
		_, _ = hash.Write(prompt[end-pageBytes : end])
		keys = append(keys, hash.Sum64())
	}
	return keys
}

// Match is the number of pages, from the first on, that the cache holds.
func (c *Cache) Match(keys []uint64) int {
	for i, key := range keys {
		if c.pages[key] == nil {
			return i
		}
	}
	return len(keys)
}

// Insert keeps the pages, and drops those used least recently where there are too many.
func (c *Cache) Insert(keys []uint64) {
	// From the last page to the first: a page is then always more recent than those behind it, so that
	// what is dropped is a leaf of the tree, as in the engine.
	for i := len(keys) - 1; i >= 0; i-- {
		if at := c.pages[keys[i]]; at != nil {
			c.recent.MoveToFront(at)
		} else {
			c.pages[keys[i]] = c.recent.PushFront(keys[i])
		}
	}
	for len(c.pages) > c.capacity {
		at := c.recent.Back()
		delete(c.pages, c.recent.Remove(at).(uint64))
	}
}

// Pages is how many pages it holds.
func (c *Cache) Pages() int { return len(c.pages) }
