-- Important stock: parts that make up more than a fraction of a nation's stock value.
select ps_partkey, sum(ps_supplycost * ps_availqty) as stock_value
from partsupp
join supplier on s_suppkey = ps_suppkey
join nation on n_nationkey = s_nationkey
where n_name = 'GERMANY'
group by ps_partkey
having sum(ps_supplycost * ps_availqty) > (
  select sum(ps_supplycost * ps_availqty) * {fraction}
  from partsupp
  join supplier on s_suppkey = ps_suppkey
  join nation on n_nationkey = s_nationkey
  where n_name = 'GERMANY'
)
order by stock_value desc
